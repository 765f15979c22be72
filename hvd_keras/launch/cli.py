"""The ``hvdrun`` command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.compat import require_alias_is_seen
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.horovod_options import explain_ignored
from hvd_keras.launch.hosts import (
    HostSlots,
    check_slots,
    is_this_machine,
    parse_hosts,
    read_hostfile,
)
from hvd_keras.launch.job import PASSED_ON
from hvd_keras.launch.local import RunningJob, start
from hvd_keras.launch.options import given_for_mpi, make_parser, split_arguments, variables
from hvd_keras.launch.schedulers import find_allocation


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``hvdrun`` and returns its exit code.

    Args:
        arguments: the words after ``hvdrun``; None for this process's.
    """
    _open_standard_descriptors()
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except LaunchError as error:
        print(f"hvdrun: error: {error}", file=sys.stderr)
        return error.exit_code


def _run(arguments: Sequence[str]) -> int:
    own, ignored, command = split_arguments(arguments)
    parser = make_parser()
    parsed = parser.parse_args(own)
    if parsed.help:
        parser.print_help()
        return 0
    if parsed.version or parsed.check_build:
        from hvd_keras.launch import build_report  # late: jobs do not need it

        return build_report.print_version() if parsed.version else build_report.print_build()
    if parsed.config_file is not None:
        from hvd_keras.launch.config_file import read_config

        of_file = split_arguments(read_config(parsed.config_file))
        ignored = [*of_file.ignored, *ignored]
        parsed = parser.parse_args([*of_file.own, *own])
        if "--no-stall-check" in own and "--stall-check" not in own:
            parsed.stall_check = False  # it is the file's
    env = {**environment.current_environment(), **variables(parsed)}
    hosts, num_proc = choose_hosts(parsed, env)
    for line in explain_ignored(ignored):
        print(f"hvdrun: {line}", file=sys.stderr)
    if parsed.compat:
        require_alias_is_seen(command, os.getcwd())
        env = environment.with_alias(env)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is someone to pass them to
    job = _start(command, hosts, num_proc, parsed, env)
    _pass_signals_on(job)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    return job.wait().exit_code


def choose_hosts(parsed: argparse.Namespace, env: Mapping[str, str]) -> tuple[list[HostSlots], int]:
    """The hosts of the job and its number of ranks.

    They come from the options, else from the scheduler in whose allocation this is, else all ranks
    run here.

    Raises:
        LaunchError: they are missing, malformed, or contradict each other.
    """
    if parsed.hosts is not None and parsed.hostfile is not None:
        raise LaunchError("-H and -hostfile both name the hosts: leave out one of them.")
    num_proc: int | None = parsed.num_proc
    if parsed.hosts is not None:
        hosts = parse_hosts(parsed.hosts)
    elif parsed.hostfile is not None:
        hosts = read_hostfile(parsed.hostfile)
    else:
        found = find_allocation(env)
        if found is None and parsed.jsrun:
            raise LaunchError("--jsrun works inside an allocation of LSF only (bsub); use -H.")
        hosts = found[1] if found else []
        num_proc = num_proc or sum(slots for _, slots in hosts)
        if not hosts or (len(hosts) == 1 and is_this_machine(hosts[0].host)):
            hosts = [HostSlots("localhost", num_proc)]
    if not num_proc:
        raise LaunchError(
            "the number of ranks is missing: write -np N, for example hvdrun -np 2 python train.py."
        )
    check_slots(hosts, num_proc)
    return hosts, num_proc


def _start(
    command: Sequence[str],
    hosts: Sequence[HostSlots],
    num_proc: int,
    parsed: argparse.Namespace,
    env: Mapping[str, str],
) -> RunningJob:
    if not (parsed.mpi or parsed.jsrun) and all(is_this_machine(host) for host, _ in hosts):
        given = given_for_mpi(parsed)
        if given:
            print(
                f"hvdrun: {', '.join(given)} ignored: all ranks are on this machine and need no "
                "network; --mpi would start them through MPI.",
                file=sys.stderr,
            )
        return start(command, num_proc, env=env, **_job_options(parsed))
    from hvd_keras.launch import mpi_job  # late: jobs of one host do not need it

    ssh = mpi_job.SshOptions(parsed.ssh_port, parsed.ssh_identity_file)
    names = ",".join(parsed.network_interfaces or ())
    options = mpi_job.MpiOptions(
        interfaces=[name.strip() for name in names.split(",") if name.strip()],
        ssh=ssh,
        tcp=parsed.tcp,
        mpi_args=mpi_job.parse_words(parsed.mpi_args or "", "--mpi-args"),
        binding_args=mpi_job.parse_words(parsed.binding_args or "", "--binding-args"),
        jsrun=parsed.jsrun,
        start_seconds=parsed.start_timeout or mpi_job.DEFAULT_START_SECONDS,
        checks_ssh="SLURM_JOB_ID" not in env,  # there, MPI's launchers use srun
    )
    return mpi_job.start_mpi_job(command, num_proc, hosts, options, env, **_job_options(parsed))


def _job_options(parsed: argparse.Namespace) -> dict[str, Any]:
    options = {
        "report_seconds": parsed.report_seconds,
        "grace_seconds": parsed.grace_seconds,
        "signal_grace_seconds": parsed.grace_seconds,
        "timeout": parsed.timeout_seconds,
        "output_dir": parsed.output_filename,
        "timestamps": parsed.prefix_output_with_timestamp,
        "verbose": parsed.verbose,
    }
    return {name: value for name, value in options.items() if value is not None}


def _pass_signals_on(job: RunningJob) -> None:
    def pass_on(signum: int, _frame: object) -> None:
        job.send_signal(signum)
        if signum == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)  # so that the shell takes over

    for signum in PASSED_ON:
        # What is ignored (nohup, a background job of a script) stays ignored.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, pass_on)


def _open_standard_descriptors() -> None:
    """Opens /dev/null for descriptors 0 to 2 that are closed, lest pipes get their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
