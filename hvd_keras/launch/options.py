"""The options of ``hvdrun``: one table, from which parser, help and environment are made."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.horovod_options import IGNORED, explain_refused
from hvd_keras.launch.job import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_REPORT_SECONDS,
    DEFAULT_SIGNAL_GRACE_SECONDS,
)
from hvd_keras.launch.values import megabytes, port, positive_int, seconds


class Option(NamedTuple):
    """One option.

    Attributes:
        group: title of its group in the help.
        flags: its names.
        help: what it does.
        type: conversion of its value; None for a switch.
        metavar: name of the value in the help.
        variable: the environment variable of the ranks that it sets.
        to_variable: makes the variable's text of the value.
        repeated: whether it may be given several times, and its value is a list.
        mpi: whether it is about MPI, and means nothing where all ranks are on this machine.
    """

    group: str
    flags: tuple[str, ...]
    help: str
    type: Callable[[str], Any] | None = None
    metavar: str | None = None
    variable: str | None = None
    to_variable: Callable[[Any], str] = str
    repeated: bool = False
    mpi: bool = False

    @property
    def dest(self) -> str:
        """Name of the parsed value: the first long flag's."""
        name = next(flag for flag in self.flags if flag.startswith("--"))
        return name.lstrip("-").replace("-", "_")


def _plain(value: float) -> str:
    return f"{value:g}"


_GRACE = (
    f"seconds from SIGTERM to SIGKILL after a failure (default {DEFAULT_GRACE_SECONDS:g}), and "
    f"from a signal that you send to SIGKILL (default {DEFAULT_SIGNAL_GRACE_SECONDS:g})"
)

OPTIONS = (
    Option(
        "general",
        ("-np", "--num-proc"),
        "number of ranks to start (default: all slots of the allocation of LSF, Slurm or PBS)",
        positive_int,
        "N",
    ),
    Option(
        "general",
        ("--compat",),
        'run an unmodified Horovod script: "import horovod" gives hvd_keras in the ranks',
    ),
    Option("general", ("--verbose",), "say what is started, and with which settings"),
    Option(
        "general", ("-cb", "--check-build"), "say what this installation was built for, and end"
    ),
    Option("general", ("-v", "--version"), "print the version, and end"),
    Option("general", ("-h", "--help"), "print this text, and end"),
    Option(
        "hosts",
        ("-H", "--hosts"),
        "hosts and their slots, for example host1:4,host2:4 (default: those of the allocation of "
        "LSF, Slurm or PBS, else localhost with as many slots as -np asks for)",
        str,
        "HOST:SLOTS,...",
    ),
    Option(
        "hosts",
        ("-hostfile", "--hostfile"),
        "the same from a file, with a line HOST slots=N for each",
        str,
        "FILE",
    ),
    Option(
        "several hosts",
        ("--mpi",),
        "start the ranks through MPI, also where all are on this machine",
    ),
    Option("several hosts", ("--jsrun",), "start them with jsrun, inside an allocation of LSF"),
    Option(
        "several hosts",
        ("--network-interfaces", "--network-interface"),
        "the only network interfaces to use, for example eth0,eth1; may be repeated",
        str,
        "NAME,...",
        repeated=True,
        mpi=True,
    ),
    Option("several hosts", ("-p", "--ssh-port"), "port of sshd on the hosts", port, "N", mpi=True),
    Option(
        "several hosts",
        ("-i", "--ssh-identity-file"),
        "file with the key for ssh",
        str,
        "FILE",
        mpi=True,
    ),
    Option("several hosts", ("--tcp",), "use TCP only, even where there is RDMA", mpi=True),
    Option(
        "several hosts",
        ("--mpi-args",),
        "more arguments for mpirun or mpiexec",
        str,
        '"ARGS"',
        mpi=True,
    ),
    Option(
        "several hosts",
        ("--binding-args",),
        "arguments for it about binding and mapping, instead of hvdrun's own (no binding)",
        str,
        '"ARGS"',
        mpi=True,
    ),
    Option(
        "environment and tuning",
        ("--start-timeout",),
        "seconds to wait in hvd.init() until all ranks are there (HVD_START_TIMEOUT), and before "
        "that, on several hosts, until MPI has started them (default there 60)",
        seconds,
        "S",
        variable="HVD_START_TIMEOUT",
        to_variable=_plain,
    ),
    Option(
        "environment and tuning",
        ("--fusion-threshold-mb",),
        "largest bucket of gradients that are reduced together, in MiB (HVD_FUSION_THRESHOLD)",
        megabytes,
        "MB",
        variable="HVD_FUSION_THRESHOLD",
        to_variable=lambda value: str(int(value * (1 << 20))),
    ),
    Option(
        "environment and tuning",
        ("--config-file",),
        "a YAML file with settings, as horovodrun has it; options here come before it",
        str,
        "FILE",
    ),
    Option(
        "output",
        ("--output-filename",),
        "also write the output of rank R to DIR/rank.R/stdout and DIR/rank.R/stderr",
        str,
        "DIR",
    ),
    Option(
        "output",
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        "start each line of output with the time",
    ),
    Option(
        "timeline",
        ("--timeline-filename",),
        "write what each rank's collectives spend their time on: rank 0 to FILE.json, rank R to "
        "FILE.rank-R.json beside it, or all into a folder FILE/ (HVD_TIMELINE)",
        str,
        "FILE",
        variable="HVD_TIMELINE",
    ),
    Option(
        "timeline",
        ("--timeline-mark-cycles",),
        "mark in it when a rank begins to work after it had nothing to do "
        "(HVD_TIMELINE_MARK_CYCLES)",
        variable="HVD_TIMELINE_MARK_CYCLES",
        to_variable=lambda value: "1" if value else "",
    ),
    Option(
        "timeline",
        ("--no-timeline-mark-cycles",),
        "do not, whatever HVD_TIMELINE_MARK_CYCLES says",
        variable="HVD_TIMELINE_MARK_CYCLES",
        to_variable=lambda value: "0" if value else "",
    ),
    Option(
        "failures and stalls",
        ("--deadlock-seconds",),
        "when every rank waits for a collective that another has not started, for this long, end "
        "them with an error; 0 for never (HVD_DEADLOCK_SECONDS)",
        seconds,
        "S",
        variable="HVD_DEADLOCK_SECONDS",
        to_variable=_plain,
    ),
    Option(
        "failures and stalls",
        ("--stall-check-warning-time-seconds",),
        "report collectives in which some ranks have waited this long for others; 0 for never "
        "(HVD_STALL_CHECK_TIME_SECONDS, default 60)",
        seconds,
        "S",
        variable="HVD_STALL_CHECK_TIME_SECONDS",
        to_variable=_plain,
    ),
    Option(
        "failures and stalls",
        ("--stall-check-shutdown-time-seconds",),
        "end the job after this long in such a collective; 0 for never "
        "(HVD_STALL_SHUTDOWN_TIME_SECONDS, default 0)",
        seconds,
        "S",
        variable="HVD_STALL_SHUTDOWN_TIME_SECONDS",
        to_variable=_plain,
    ),
    Option(
        "failures and stalls",
        ("--no-stall-check",),
        "neither report them nor end the job",
        variable="HVD_STALL_CHECK_DISABLE",
        to_variable=lambda value: "1" if value else "",
    ),
    Option(
        "failures and stalls",
        ("--stall-check",),
        "report them, whatever HVD_STALL_CHECK_DISABLE says",
        variable="HVD_STALL_CHECK_DISABLE",
        to_variable=lambda value: "0" if value else "",
    ),
    Option(
        "failures and stalls",
        ("--report-seconds",),
        "after a rank failed, seconds in which the others may say what they saw before they are "
        f"sent SIGTERM (default {DEFAULT_REPORT_SECONDS:g})",
        seconds,
        "S",
    ),
    Option("failures and stalls", ("--grace-seconds",), _GRACE, seconds, "S"),
    Option(
        "failures and stalls",
        ("--timeout-seconds",),
        "end the job after this time, with exit code 124",
        seconds,
        "S",
    ),
)

_DESCRIPTION = """\
Starts N processes ("ranks") of one command, which train together.

  hvdrun -np 2 python train.py --epochs 3                      on this machine
  hvdrun -np 8 -H host1:4,host2:4 python train.py              on two, over ssh and MPI

Options of hvdrun come before the command; whatever follows it is the command's own."""

_EPILOG = """\
Each line of output is marked with the rank that wrote it. The ranks' standard input is empty.
SIGINT, SIGTERM, SIGHUP, SIGTSTP and SIGCONT are passed on to all processes of every rank, SIGUSR1
and SIGUSR2 to the ranks' own processes; a second Ctrl-C kills them. When a rank fails, the others
are ended, and hvdrun exits with the code of the rank that failed first (128 + N for signal N).
When the job ends, so does everything that the ranks have started.
Of several ranks, each gets TF_NUM_INTRAOP_THREADS and OMP_NUM_THREADS set to its share of the
cores, and PYTHONUNBUFFERED=1: set them yourself to have it otherwise.
On several hosts, MPI's launcher passes signals on as it does; see docs/running.md."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.replace("argument ", "", 1)
        raise LaunchError(f"{message} (hvdrun --help lists the options).")


def make_parser() -> argparse.ArgumentParser:
    """The parser of everything that precedes the command."""
    parser = _Parser(
        prog="hvdrun",
        usage="hvdrun -np N [options] command [argument ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        how: dict[str, Any] = {"dest": option.dest, "help": option.help}
        if option.type is None:
            how["action"] = "store_true"
        else:
            how.update(type=option.type, metavar=option.metavar)
            if option.repeated:
                how["action"] = "append"
        groups[option.group].add_argument(*option.flags, **how)
    return parser


class Arguments(NamedTuple):
    """The words of a command line.

    Attributes:
        own: hvdrun's options.
        ignored: the flags of horovodrun that were left out of them.
        command: what is to run.
    """

    own: list[str]
    ignored: list[str]
    command: list[str]


def split_arguments(arguments: Sequence[str]) -> Arguments:
    """Parts hvdrun's own arguments from the command, which starts at the first non-option.

    A ``--`` before the command is dropped.

    Raises:
        LaunchError: there is an option of horovodrun that hvdrun cannot do without.
    """
    values = {flag: 1 for option in OPTIONS if option.type for flag in option.flags}
    of_horovod = {flag: option.values for option in IGNORED for flag in option.flags}
    own: list[str] = []
    ignored: list[str] = []
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if argument == "--":
            at += 1
            break
        if not argument.startswith("-") or argument == "-":
            break
        flag, has_value, _ = argument.partition("=")
        refused = explain_refused(flag)
        if refused:
            raise LaunchError(refused)
        following = 0 if has_value else values.get(flag, of_horovod.get(flag, 0))
        if flag in of_horovod:
            ignored.append(flag)
        elif following and flag.startswith("--") and at + 1 < len(arguments):
            own.append(f"{flag}={arguments[at + 1]}")  # the value may begin with a dash
        else:
            own += arguments[at : at + 1 + following]
        at += 1 + following
    return Arguments(own, ignored, list(arguments[at:]))


def given_for_mpi(parsed: argparse.Namespace) -> list[str]:
    """The options about MPI that were given."""
    given = (option for option in OPTIONS if option.mpi and getattr(parsed, option.dest))
    return [next(flag for flag in option.flags if flag.startswith("--")) for option in given]


def variables(parsed: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the options ask for."""
    values = ((option, getattr(parsed, option.dest)) for option in OPTIONS if option.variable)
    texts = (
        (option.variable, option.to_variable(value))
        for option, value in values
        if option.variable and value is not None
    )
    return {variable: text for variable, text in texts if text}
