"""Running a job on this host: the side of whoever asks for it.

The work is done by a supervisor process (:mod:`hvd_keras.launch.supervisor`); so a job can be
started from any thread of any program without touching its signals or its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.command import find_program
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.job import Job, JobResult
from hvd_keras.launch.output import write_all

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PACKAGE_ROOT = Path(__file__).parents[2]


class RunningJob:
    """A job that was started. Exactly one thread calls :meth:`wait`, once.

    Args:
        job: what to run.
        env: the environment to start from.
        cwd: the directory to run in.
        stdout: where the ranks' standard output goes: a descriptor or file, None to inherit.
        stderr: likewise their standard error and the launcher's messages.
    """

    def __init__(
        self, job: Job, env: Mapping[str, str], cwd: str, stdout: Any = None, stderr: Any = None
    ) -> None:
        self._pids: list[int] = []
        status_read, status_write = os.pipe()
        control_read, self._control = os.pipe()
        self._status = os.fdopen(status_read, "rb")
        # -I -S: neither the user's directory nor site hooks may put modules in the way.
        paths = [str(_PACKAGE_ROOT), *(os.path.abspath(path) for path in sys.path if path)]
        arguments = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(status_write), *paths]
        try:
            self._supervisor = subprocess.Popen(
                arguments,
                env=dict(env),
                cwd=cwd,
                stdin=control_read,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(status_write,),
                start_new_session=True,
            )
        finally:
            os.close(control_read)
            os.close(status_write)
        with contextlib.suppress(BrokenPipeError):  # wait() reports it
            write_all(self._control, job.to_json().encode() + b"\n")

    def send_signal(self, signum: int) -> None:
        """Passes a signal on to the ranks; may be called from a signal handler."""
        with contextlib.suppress(OSError):  # the job may just have ended
            os.write(self._control, bytes([signum]))

    def wait(self) -> JobResult:
        """Waits for the end of the job.

        Leaving by an exception (``KeyboardInterrupt``) ends the job first.

        Raises:
            LaunchError: the job could not be started, or its supervisor died.
        """
        result = None
        try:
            for line in self._status:
                message = json.loads(line)
                if message["event"] == "error":
                    raise LaunchError(message["message"])
                if message["event"] == "started":
                    self._pids = message["pids"]
                if message["event"] == "end":
                    result = JobResult.from_dict(message["result"])
        finally:
            control, self._control = self._control, -1  # a late signal must not hit a new file
            os.close(control)
            self._status.close()
            self._supervisor.wait()
        if result is None:
            raise self._supervisor_died()
        return result

    def _supervisor_died(self) -> LaunchError:
        # The kernel has killed the ranks; this is for what they started.
        for pid in self._pids:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        code = self._supervisor.returncode
        return LaunchError(
            f"the supervisor of the ranks (pid {self._supervisor.pid}) ended before them, with "
            f"return code {code}; the ranks were killed.",
            exit_code=1,
        )


def start(
    command: Sequence[str],
    num_proc: int,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    **options: Any,
) -> RunningJob:
    """Starts a job and returns it; the arguments are those of :func:`launch`."""
    if num_proc < 1:
        raise LaunchError(f"the number of ranks must be 1 or more, not {num_proc}.")
    env = environment.current_environment() if env is None else env
    directory = os.path.abspath(cwd) if cwd is not None else os.getcwd()
    program = find_program(command, env, directory)
    job = Job(command=list(command), program=program, num_proc=num_proc, **options)
    return RunningJob(job, env, directory, stdout, stderr)


def launch(
    command: Sequence[str],
    num_proc: int,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    **options: Any,
) -> JobResult:
    """Runs ``command`` as ``num_proc`` ranks on this host, and waits for them.

    It may be called from any thread; signals to the calling process are not passed on.

    Args:
        command: the program and its arguments.
        num_proc: number of ranks.
        env: the environment to start from; None for this process's.
        cwd: the directory to run in; None for the current one.
        stdout: a descriptor or file for the ranks' output, ``subprocess.DEVNULL``, or None to
            share this process's.
        stderr: likewise for their standard error and the launcher's messages.
        **options: fields of :class:`hvd_keras.launch.job.Job`, for example ``timeout=60.0`` or
            ``output_dir="logs"``.

    Returns:
        How the job ended; a failing rank is a result, not an exception.

    Raises:
        LaunchError: the job could not be started.
    """
    return start(
        command, num_proc, env=env, cwd=cwd, stdout=stdout, stderr=stderr, **options
    ).wait()
