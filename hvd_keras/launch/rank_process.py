"""The process that an MPI launcher starts for each rank; it runs the rank's command as its child.

It marks the rank's output, writes it to files of this host, passes signals on, tells ``hvdrun`` how
the command ended (:mod:`hvd_keras.launch.rank_reports`), and lets some seconds pass after a failure
before it ends itself: its end is what makes the launcher kill the other ranks.

There are two processes. The outer one belongs to the launcher, which may kill it at any time; the
inner one is a supervisor as on one host (:mod:`hvd_keras.launch.supervisor`), in a session of its
own, and ends all that the rank has started when the outer one is gone.

``rank_process.py JOB CWD``: a :class:`hvd_keras.launch.job.Job` in JSON, and the job's directory.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":  # started by path, isolated from the user's modules
    # The package without its __init__.py, which needs others that are not on this path.
    _package = types.ModuleType("hvd_keras")
    _package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["hvd_keras"] = _package

import contextlib
import dataclasses
import functools
import os
import signal
import time
from typing import NoReturn

from hvd_keras.launch import environment, processes
from hvd_keras.launch.command import find_program
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.job import PASSED_ON, Job
from hvd_keras.launch.output import PacketSink
from hvd_keras.launch.pump import OutputPump
from hvd_keras.launch.rank_reports import RankReport, cut_line
from hvd_keras.launch.schedulers import Placement, find_placement
from hvd_keras.launch.supervisor import ENDING, Rank, Supervisor


class RankSupervisor(Supervisor):
    """Runs one rank of an MPI job. ``run`` is called once; ``exit_code`` then says how it ended."""

    def __init__(self, job: Job, cwd: str, placement: Placement, control_fd: int) -> None:
        self._cwd = cwd
        self._placement = placement
        super().__init__(job, control_fd, os.open(os.devnull, os.O_WRONLY))
        self._told = False
        self._ended_at = 0.0

    @property
    def exit_code(self) -> int:
        """The exit code of the rank's command, 128 + N for a signal; 2 if it could not start."""
        code = self._ranks[0].returncode if self._ranks else 2
        return processes.shell_exit_code(-signal.SIGKILL if code is None else code)

    def _start_ranks(self) -> None:
        try:
            os.chdir(self._cwd)
        except OSError as error:
            raise self._error(
                f"the directory {self._cwd} cannot be entered there: {error.strerror}. All hosts "
                "have to see the same files under the same names."
            ) from error
        env = environment.mpi_rank_environment(
            environment.current_environment(), self._placement.local_size, _cores()
        )
        rank = self._placement.rank
        try:
            program = find_program(self._job.command, env, self._cwd)
            self._job = dataclasses.replace(self._job, program=program)
            # Inheritable descriptors are the launcher's, such as PMI_FD.
            self._ranks.append(self._start_rank(rank, env, close_fds=False))
        except (LaunchError, OSError) as error:
            raise self._error(str(error)) from error
        self._report("started", self._ranks[0].pid)

    def _error(self, text: str) -> LaunchError:
        self._report("error", text=text)
        return LaunchError(text)

    def _report(
        self, event: str, pid: int = 0, returncode: int = 0, told: bool = False, text: str = ""
    ) -> None:
        host = os.uname().nodename
        message = RankReport(event, self._placement.rank, host, pid, returncode, told, text)
        self._output.put_line(message.to_line())

    def _make_output(self) -> OutputPump:
        # Both streams through one pipe: hvdrun parts them by the marks. Standard output may be a
        # terminal of the launcher's making, of which nobody can say how much was read.
        cut = functools.partial(cut_line, self._placement.rank)
        return OutputPump(self._job, self._selector, self._on_lost_output, PacketSink(2, cut))

    def _say(self, text: str) -> None:
        super()._say(f"rank {self._placement.rank} (host {os.uname().nodename}): {text}")

    def _explain_interrupt(self) -> None:
        pass  # hvdrun has said it

    def _pass_on(self, signum: int) -> None:
        self._told = self._told or signum in ENDING
        super()._pass_on(signum)

    def _on_rank_end(self, rank: Rank, returncode: int) -> None:
        self._ended_at = time.monotonic()
        self._output.read_pending()
        self._report("ended", rank.pid, returncode, self._told or self._ending is not None)

    def _finish(self) -> None:
        """Writes the rest of the output; after a failure, gives the other ranks time to speak."""
        self._output.drain()
        self._flush()
        until = self._ended_at + self._job.report_seconds
        while self.exit_code and not (self._told or self._orphaned()):
            left = until - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left):
                key.data()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _run_inner(job: Job, cwd: str, control_fd: int) -> int:
    os.setsid()
    processes.become_subreaper()
    placement = find_placement(environment.current_environment())
    if placement is None:
        print(
            "hvdrun: error: the launcher did not tell this process its rank; of its variables, "
            "OMPI_COMM_WORLD_RANK, PMI_RANK, JSM_NAMESPACE_RANK and SLURM_PROCID are known.",
            file=sys.stderr,
        )
        return 2
    supervisor = RankSupervisor(job, cwd, placement, control_fd)
    supervisor.run()
    return supervisor.exit_code


def _run_outer(inner: int, control_fd: int) -> NoReturn:
    def pass_on(signum: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.write(control_fd, bytes([signum]))

    for signum in PASSED_ON:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    _, status = os.waitpid(inner, 0)
    os._exit(processes.shell_exit_code(os.waitstatus_to_exitcode(status)))


def main() -> None:
    """Runs the rank that the launcher's variables name."""
    job, cwd = Job.from_json(sys.argv[1]), sys.argv[2]
    control_read, control_write = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is someone to pass them to
    inner = os.fork()
    if inner:
        os.close(control_read)
        _run_outer(inner, control_write)
    os.close(control_write)
    sys.exit(_run_inner(job, cwd, control_read))


if __name__ == "__main__":
    main()
