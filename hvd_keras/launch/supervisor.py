"""The process that starts the ranks of one host, carries their output and ends them.

It is a process of its own, started by :mod:`hvd_keras.launch.local`, so that it may own all its
signals and children: one thread, one selector, no polling. It sits in its own session (a signal
from the terminal reaches the ranks once, through it), adopts whatever the ranks leave behind, and
outlives whoever started it just long enough to end the job: if ``hvdrun`` is killed, its end of
the control pipe closes. If this process is killed, the kernel kills the ranks
(``PR_SET_PDEATHSIG``).

Standard input is the control pipe: a line of JSON (:class:`hvd_keras.launch.job.Job`), then one
byte for each signal to pass on.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # started by path, isolated from the user's modules: see local.py
    sys.path.extend(sys.argv[2:])

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import time
from typing import Any

from hvd_keras.launch import ending, environment, processes, report
from hvd_keras.launch.command import explain_exec_error
from hvd_keras.launch.ending import Ending, Step
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.job import PASSED_ON, Job, JobResult
from hvd_keras.launch.obituary import write_obituary
from hvd_keras.launch.output import LineFilter, RankStream
from hvd_keras.launch.pump import OutputPump

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A wrapper or worker process of a rank would die of a signal that only the script expects.
_TO_PROCESS = (signal.SIGUSR1, signal.SIGUSR2)
_LAST_WRITE_SECONDS = 5.0


class Rank:
    """A rank that was started."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], stderr: RankStream) -> None:
        self.rank = rank
        self.process = process
        self.pid = process.pid
        self.returncode: int | None = None
        self.ended_at = 0.0
        self.told_to_end = False
        self.stderr = stderr


class Supervisor:
    """One job on this host. ``run`` is called once.

    Jobs over MPI have two kinds of supervisors derived from it: one holds the MPI launcher
    (:mod:`hvd_keras.launch.mpi_supervisor`), one each rank (:mod:`~.rank_process`).
    """

    def __init__(self, job: Job, control_fd: int, status_fd: int) -> None:
        self._job = job
        self._control_fd = control_fd
        self._status_fd = status_fd
        self._selector = selectors.DefaultSelector()
        self._output = self._make_output()
        self._ranks: list[Rank] = []
        self._segment_fd = -1
        self._flight_recorder = ""
        self._started = time.time()
        self._ending: Ending | None = None
        self._deadline = time.monotonic() + job.timeout if job.timeout else float("inf")
        self._interrupts = 0
        self._killing = False
        self._given_up = False
        self._childless = False
        self._only_leftovers = False
        self._late: list[int] = []

    def _make_output(self) -> OutputPump:
        return OutputPump(self._job, self._selector, self._on_lost_output)

    def run(self) -> None:
        """Runs the job to its end and sends its result."""
        self._watch_signals()
        self._watch(self._control_fd, self._on_control)
        try:
            self._start_ranks()
        except LaunchError as error:
            self._kill_all()
            self._send({"event": "error", "message": str(error)})
            return
        self._send({"event": "started", "pids": [rank.pid for rank in self._ranks]})
        while not (self._childless or self._given_up):
            self._step()
        self._finish()

    # Starting

    def _start_ranks(self) -> None:
        self._segment_fd = os.memfd_create("hvd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        segment = f"/proc/{os.getpid()}/fd/{self._segment_fd}"
        base = environment.with_flight_recorder(environment.current_environment())
        self._flight_recorder = base[environment.FLIGHT_RECORDER_VARIABLE]
        cores = len(os.sched_getaffinity(0))
        size = self._job.num_proc
        if self._job.verbose:
            hints = environment.thread_hints(base, size, cores)
            self._say(f"command: {' '.join(self._job.command)} (program {self._job.program})")
            self._say(f"{cores} cores; set for each rank: {_assignments(hints) or 'no hints'}")
        for rank in range(size):
            env = environment.rank_environment(base, rank, size, segment, cores)
            try:
                self._ranks.append(self._start_rank(rank, env))
            except OSError as error:
                raise LaunchError(
                    f"rank {rank} of {size} could not be started: {error.strerror}."
                ) from error
            if self._job.verbose:
                identity = environment.rank_identity(rank, size, segment)
                self._say(f"rank {rank}: pid {self._ranks[-1].pid}, {_assignments(identity)}")

    def _start_rank(
        self, rank: int, env: dict[str, str], line_filter: LineFilter | None = None, **how: Any
    ) -> Rank:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            self._output.add(rank, "stdout", out_read)
            stderr = self._output.add(rank, "stderr", err_read)
            stderr.keep_tail()
            stderr.line_filter = line_filter
            process = subprocess.Popen(
                self._job.command,
                executable=self._job.program,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                # This process has one thread, so running Python after fork is safe.
                preexec_fn=functools.partial(processes.prepare_rank, os.getpid()),
                **how,
            )
        except OSError as error:
            text = explain_exec_error(self._job.command[0], self._job.program, error)
            raise LaunchError(text) from error
        finally:
            os.close(out_write)
            os.close(err_write)
        return Rank(rank, process, stderr)

    # Events

    def _watch(self, fd: int, callback: Any) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _watch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        for signum in (*PASSED_ON, signal.SIGCHLD):
            # A signal that was ignored when hvdrun started (nohup) stays ignored in the ranks.
            if signum == signal.SIGCHLD or signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._watch(wake_read, functools.partial(self._on_wakeup, wake_read))

    def _step(self) -> None:
        """Waits for the next event or deadline, and acts on it."""
        self._output.pace()
        now = time.monotonic()
        until = self._ending.next_time if self._ending else self._next_deadline()
        if self._killing:  # what is killed may be forking: look again soon
            until = min(until, now + 0.1)
        timeout = None if until == float("inf") else max(0.0, until - now)
        for key, _ in self._selector.select(timeout):
            key.data()
        self._reap()
        self._advance(time.monotonic())

    def _next_deadline(self) -> float:
        return self._deadline

    def _on_lost_output(self, text: str) -> None:
        if self._ending is None:
            self._ending = ending.at_once("output", self._job, time.monotonic())
            self._say(text)

    def _on_wakeup(self, wake_fd: int) -> None:
        if signal.SIGTERM in os.read(wake_fd, 4096):
            self._pass_on(signal.SIGTERM)

    def _on_control(self) -> None:
        signals = os.read(self._control_fd, 4096)
        if not signals:
            self._selector.unregister(self._control_fd)
            self._ending = ending.at_once("orphaned", self._job, time.monotonic())
        for signum in signals:
            self._pass_on(signum)

    def _pass_on(self, signum: int) -> None:
        now = time.monotonic()
        self._interrupts += signum == signal.SIGINT
        self._signal_ranks(signum)
        if signum not in ENDING or self._killing:
            return
        cause = self._ending.cause if self._ending else "signal"
        if self._interrupts > 1:
            self._ending = ending.by_force(cause, now, signum)
        elif self._ending is None:
            self._ending = ending.after_signal(self._job, now, signum)
            if signum == signal.SIGINT:
                self._explain_interrupt()
        elif cause != "signal":
            self._ending = ending.at_once(cause, self._job, now)

    def _explain_interrupt(self) -> None:
        self._say("interrupted, waiting for the ranks to end; again to kill them.")

    def _signal_ranks(self, signum: int) -> None:
        for rank in self._living():
            if signum in _TO_PROCESS:
                processes.signal_process(rank.pid, signum)
            else:
                processes.signal_group(rank.pid, signum)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            for rank in self._ranks:
                if rank.pid == pid:
                    rank.returncode = os.waitstatus_to_exitcode(status)
                    rank.process.returncode = rank.returncode
                    rank.ended_at = time.monotonic()
                    self._on_rank_end(rank, rank.returncode)

    def _on_rank_end(self, rank: Rank, returncode: int) -> None:
        write_obituary(self._segment_fd, rank.rank, returncode)

    # Ending

    def _living(self) -> list[Rank]:
        return [rank for rank in self._ranks if rank.returncode is None]

    def _advance(self, now: float) -> None:
        if self._ending is None:
            if any(rank.returncode for rank in self._ranks):
                self._ending = ending.after_failure(self._job, now)
            elif now >= self._deadline:
                self._late = [rank.rank for rank in self._living()]
                self._ending = ending.at_once("timeout", self._job, now)
        if not (self._living() or self._childless or self._killing or self._only_leftovers):
            self._only_leftovers = True
            self._ending = ending.of_leftovers(self._ending, self._job, now)
        if self._ending is not None:
            step = self._ending.due(now)
            if step is Step.TERMINATE:
                self._terminate_all()
            elif step is Step.KILL or (step is None and self._killing):
                self._kill_all()
            elif step is Step.GIVE_UP:
                self._give_up()

    def _terminate_all(self) -> None:
        self._name_leftovers()
        for rank in self._living():
            rank.told_to_end = True
        for pid in processes.descendants(os.getpid()):
            processes.signal_process(pid, signal.SIGTERM)
            processes.signal_process(pid, signal.SIGCONT)  # a stopped process cannot end

    def _kill_all(self) -> None:
        self._killing = True
        for rank in self._living():
            rank.told_to_end = True
            processes.signal_group(rank.pid, signal.SIGKILL)
        for pid in processes.descendants(os.getpid()):
            processes.signal_process(pid, signal.SIGKILL)

    def _name_leftovers(self) -> None:
        if self._living():
            return
        left = processes.descendants(os.getpid())
        if left:
            names = ", ".join(f"{pid} ({processes.process_name(pid)})" for pid in left[:4])
            more = f" and {len(left) - 4} more" if len(left) > 4 else ""
            self._say(f"ending what the ranks left running: {names}{more}.")

    def _give_up(self) -> None:
        self._given_up = True
        left = processes.descendants(os.getpid())
        self._say(f"these processes cannot be killed and are left: {left}.")

    def _finish(self) -> None:
        """Writes what is left of the output, then the summary, and sends the result."""
        self._output.drain()
        lines, result = self._outcome()
        for line in lines:
            self._output.say(line)
        self._flush()
        self._send({"event": "end", "result": result.to_dict()})

    def _outcome(self) -> tuple[list[str], JobResult]:
        """The last lines for the user, and the result."""
        ranks = [self._ended(rank) for rank in self._ranks]
        recorder = self._flight_recorder if self._has_flight_record() else None
        lines = report.summary(self._job, ranks, self._ending, self._late, recorder)
        return lines, report.make_result(ranks, self._ending)

    def _has_flight_record(self) -> bool:
        """Whether a rank of this job has written its flight recorder."""
        with contextlib.suppress(OSError), os.scandir(self._flight_recorder) as entries:
            return any(
                entry.name.startswith("rank-") and entry.stat().st_mtime >= self._started
                for entry in entries
            )
        return False

    def _ended(self, rank: Rank) -> report.EndedRank:
        returncode = -signal.SIGKILL if rank.returncode is None else rank.returncode
        return report.EndedRank(
            rank=rank.rank,
            pid=rank.pid,
            returncode=returncode,
            ended_at=rank.ended_at,
            told_to_end=rank.told_to_end,
            onset=rank.stderr.onset,
            stderr=rank.stderr.tail,
            visible=rank.stderr.wrote_last,
        )

    def _flush(self) -> None:
        """Waits until the output is written, unless the user or the job's end cannot wait."""
        hurried = self._ending is not None and self._ending.cause in ("timeout", "orphaned")
        until = time.monotonic() + _LAST_WRITE_SECONDS if hurried else float("inf")
        interrupts = self._interrupts
        while self._output.queued and time.monotonic() < until:
            self._output.pace()
            timeout = until - time.monotonic() if hurried else None
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._interrupts > max(interrupts, 1) or self._orphaned():
                return

    def _orphaned(self) -> bool:
        return self._control_fd not in self._selector.get_map()

    # Talking

    def _say(self, text: str) -> None:
        self._output.say(f"hvdrun: {text}")

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # whoever asked may be gone
            os.write(self._status_fd, json.dumps(message).encode() + b"\n")


def _assignments(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _read_job(control_fd: int) -> Job:
    # Byte by byte: what follows the line are signals.
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(control_fd, 1)
        if not byte:
            sys.exit(1)  # whoever asked is gone
        line += byte
    return Job.from_json(bytes(line))


def main() -> None:
    """Runs the job that comes through standard input; the result goes to the status pipe."""
    status_fd = int(sys.argv[1])
    os.set_inheritable(status_fd, False)
    control_fd = os.dup(0)
    job = _read_job(control_fd)
    processes.become_subreaper()
    kind = Supervisor
    if job.mpi is not None:
        from hvd_keras.launch.mpi_supervisor import MpiSupervisor as kind  # late: few need it
    kind(job, control_fd, status_fd).run()


if __name__ == "__main__":
    main()
