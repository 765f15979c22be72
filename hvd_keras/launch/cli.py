"""The ``hvdrun`` command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.compat import require_alias_is_seen
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.horovod_options import explain_ignored
from hvd_keras.launch.hosts import check_hosts, parse_hosts, read_hostfile
from hvd_keras.launch.job import PASSED_ON
from hvd_keras.launch.local import RunningJob, start
from hvd_keras.launch.options import make_parser, split_arguments, variables


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
    if parsed.num_proc is None:
        raise LaunchError(
            "the number of ranks is missing: write -np N, for example hvdrun -np 2 python train.py."
        )
    if parsed.hosts is not None and parsed.hostfile is not None:
        raise LaunchError("-H and -hostfile both name the hosts: leave out one of them.")
    if parsed.hosts is not None:
        check_hosts(parse_hosts(parsed.hosts), parsed.num_proc)
    if parsed.hostfile is not None:
        check_hosts(read_hostfile(parsed.hostfile), parsed.num_proc)
    for line in explain_ignored(ignored):
        print(f"hvdrun: {line}", file=sys.stderr)
    env = {**environment.current_environment(), **variables(parsed)}
    if parsed.compat:
        require_alias_is_seen(command, os.getcwd())
        env = environment.with_alias(env)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is someone to pass them to
    job = start(command, parsed.num_proc, env=env, **_job_options(parsed))
    _pass_signals_on(job)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    return job.wait().exit_code


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
