"""The process that holds the MPI launcher of a job: its output, its signals, its end.

It is a supervisor as on one host (:mod:`hvd_keras.launch.supervisor`) whose one child is mpirun or
mpiexec. What it knows of the ranks comes from the processes around them
(:mod:`hvd_keras.launch.rank_process`), as marked lines among their standard error.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from hvd_keras.launch import ending, environment, processes, report
from hvd_keras.launch.job import Job, JobResult, RankResult
from hvd_keras.launch.output import TAIL_LINE_BYTES, TAIL_LINES, is_onset
from hvd_keras.launch.rank_reports import LineJoiner, RankReport, parse_report
from hvd_keras.launch.supervisor import Supervisor

_LAUNCHER = -1  # in place of a rank
_LABEL = re.compile(rb"(?:\d{4}-[\d-]+T[\d:.]+ )?\[(\d+)\]<(stdout|stderr)>: ")
# What Open MPI's launcher prints when it has ended a rank with report.SOCKET_CLOSED_CODE.
_SOCKET_CLOSED = b"An error occurred in Socket closed"
# After the last report: the launcher has to end its daemons, and what it started by ssh.
_LAUNCHER_SECONDS = 5.0


@dataclasses.dataclass
class _RemoteRank:
    """What is known of a rank: all from its reports and its output."""

    rank: int
    host: str
    pid: int = 0
    returncode: int | None = None
    ended_at: float = 0.0
    told_to_end: bool = False
    onset: float | None = None
    tail: collections.deque[bytes] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=TAIL_LINES)
    )


class MpiSupervisor(Supervisor):
    """One job over MPI. ``run`` is called once."""

    def __init__(self, job: Job, control_fd: int, status_fd: int) -> None:
        super().__init__(job, control_fd, status_fd)
        assert job.mpi is not None
        self._mpi = job.mpi
        self._joiner = LineJoiner()
        self._known: dict[int, _RemoteRank] = {}
        self._error: RankReport | None = None
        self._last_writer = (_LAUNCHER, 0)
        self._forced = False
        self._socket_closed = False
        self._start_deadline = time.monotonic() + job.mpi.start_seconds

    def _start_ranks(self) -> None:
        env = environment.current_environment()
        self._flight_recorder = env.get(environment.FLIGHT_RECORDER_VARIABLE, "")
        launcher = self._start_rank(_LAUNCHER, env, self._take_reports)
        self._output.may_fill_stdout(launcher.stderr)
        self._ranks.append(launcher)
        if self._job.verbose:
            self._say(f"{self._mpi.name}: pid {launcher.pid}")

    # What the ranks say

    def _take_reports(self, lines: list[bytes]) -> list[bytes]:
        """Returns what of these lines of the launcher's standard error is to be shown there."""
        shown = []
        for piece in lines:
            whole = self._joiner.feed(piece)
            if whole is None:
                continue
            line, message = parse_report(whole)
            if message is not None:
                self._on_report(message)
            if not line.strip(b"\0"):
                continue
            match = _LABEL.match(line)
            if match is None and _SOCKET_CLOSED in line:
                self._socket_closed = True
            if match and match[2] == b"stdout":
                self._last_writer = (_LAUNCHER, 0)
                self._output.put_line(line, to_stdout=True)
                continue
            shown.append(line)
            self._remember(
                int(match[1]) if match else _LAUNCHER, line[match.end() :] if match else line
            )
        return shown

    def _remember(self, number: int, line: bytes) -> None:
        last, count = self._last_writer
        self._last_writer = (number, count + 1 if last == number else 1)
        rank = self._known.get(number)
        if rank is not None:
            if is_onset(line):
                rank.onset = time.monotonic()
            rank.tail.append(line[:TAIL_LINE_BYTES])

    def _on_report(self, message: RankReport) -> None:
        now = time.monotonic()
        rank = self._known.setdefault(message.rank, _RemoteRank(message.rank, message.host))
        rank.pid = message.pid or rank.pid
        if message.event == "started" and self._job.verbose:
            self._say(f"rank {rank.rank}: host {rank.host}, pid {rank.pid}")
        if message.event == "ended":
            rank.returncode, rank.ended_at = message.returncode, now
            rank.told_to_end = message.told_to_end
        if message.event == "error":
            self._error = self._error or message
        failed = message.event == "error" or (rank.returncode and not rank.told_to_end)
        if failed and self._ending is None:
            # The processes around the ranks keep the time to report; this is for a launcher that
            # does not come to an end.
            patience = self._job.report_seconds + self._job.grace_seconds + _LAUNCHER_SECONDS
            steps = ((patience, ending.Step.TERMINATE), (self._job.grace_seconds, ending.Step.KILL))
            self._ending = ending.Ending("failure", now, *steps)

    # Signals and the end

    def _signal_ranks(self, signum: int) -> None:
        # The launcher alone: a signal to the ssh that it runs would cut the ranks off.
        for launcher in self._living():
            processes.signal_process(launcher.pid, signum)

    def _terminate_all(self) -> None:
        if not self._living():
            super()._terminate_all()
            return
        for launcher in self._living():
            launcher.told_to_end = True
            processes.signal_process(launcher.pid, signal.SIGTERM)
            processes.signal_process(launcher.pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        self._forced = self._forced or bool(self._living())
        super()._kill_all()

    def _on_rank_end(self, rank: Any, returncode: int) -> None:
        self._output.read_pending()

    def _next_deadline(self) -> float:
        """When to look at the clock again."""
        started = len(self._known) >= self._job.num_proc
        return self._deadline if started else min(self._deadline, self._start_deadline)

    def _advance(self, now: float) -> None:
        missing = len(self._known) < self._job.num_proc
        if missing and self._ending is None and now >= self._start_deadline and self._living():
            self._ending = ending.at_once("start", self._job, now)
        if self._ending is None and now >= self._deadline:
            self._late = self._running()
            self._ending = ending.at_once("timeout", self._job, now)
        super()._advance(now)

    def _running(self) -> list[int]:
        return [r for r in range(self._job.num_proc) if self._returncode(r) is None]

    def _returncode(self, rank: int) -> int | None:
        return self._known[rank].returncode if rank in self._known else None

    # The outcome

    def _outcome(self) -> tuple[list[str], JobResult]:
        launcher = self._ranks[0]
        known = [self._known[rank] for rank in sorted(self._known)]
        ended = [self._as_ended(rank) for rank in known if rank.returncode is not None]
        cause = self._ending.cause if self._ending else "done"
        code = launcher.returncode or 0
        if cause == "done" and (code or self._running()):
            cause = "failure"
        first = report.first_failure(ended) if cause in ("failure", "done") else None
        if first is not None:
            cause = "failure"
        lines = self._lines(cause, ended, first)
        return [*lines, *self._possibly_left()], self._make_result(cause, ended, first)

    def _lines(
        self, cause: str, ended: Sequence[report.EndedRank], first: report.EndedRank | None
    ) -> list[str]:
        if cause == "start":
            return [self._not_started()]
        if cause == "failure" and self._error is not None:
            error = self._error
            return [
                f"hvdrun: rank {error.rank} (host {error.host}) could not be started: {error.text}"
            ]
        if cause == "failure" and first is None:
            return [self._launcher_failed()]
        if cause == "failure":
            steps = ending.Ending("failure", 0.0)
            recorder = self._flight_recorder if self._has_flight_record() else None
            # Some launchers kill the process around a rank before it can say that the rank ended.
            killed = [
                self._as_ended(dataclasses.replace(rank, returncode=-9, told_to_end=True))
                for rank in self._known.values()
                if rank.returncode is None
            ]
            ranks = sorted([*ended, *killed], key=lambda entry: entry.rank)
            return report.summary(self._job, ranks, steps, (), recorder)
        return report.summary(self._job, ended, self._ending, self._late)

    def _not_started(self) -> str:
        here = f"{len(self._known)} of {self._job.num_proc} ranks"
        seen = {rank.host for rank in self._known.values()}
        running = f" (on {_some(sorted(seen))})" if seen else ""
        return (
            f"hvdrun: after {self._mpi.start_seconds:g} s only {here}{running} had started, of a "
            f"job on {_some(self._mpi.hosts)}; it was ended. {self._mpi.name} could not start the "
            "others, or they could not connect back: name the network interface that all hosts "
            "share with --network-interfaces, look at the firewall, or allow more time with "
            "--start-timeout."
        )

    def _launcher_failed(self) -> str:
        launcher = self._ranks[0]
        how = report.describe(launcher.returncode or 0)
        started = len(self._known)
        if not started:
            what = "and had started no rank"
        else:
            running = self._running()
            what = f"while {len(running)} of {self._job.num_proc} ranks were running"
        return (
            f"hvdrun: {self._mpi.name} ({self._job.command[0]}, pid {launcher.pid}) ended with "
            f"{how} {what}; what it wrote is above."
        )

    def _possibly_left(self) -> list[str]:
        """The hosts on which processes may run on, if the launcher had to be killed."""
        if not self._forced:
            return []
        running = self._running()
        hosts = [self._known[rank].host for rank in running if rank in self._known]
        if any(rank not in self._known for rank in running):
            hosts += self._mpi.hosts
        if not hosts:
            return []
        return [
            f"hvdrun: {self._mpi.name} did not end and was killed; processes of the job "
            f"may be left on {_some(list(dict.fromkeys(hosts)))}."
        ]

    def _as_ended(self, rank: _RemoteRank) -> report.EndedRank:
        def visible(lines: int) -> bool:
            number, count = self._last_writer
            return number == rank.rank and count >= lines

        assert rank.returncode is not None
        return report.EndedRank(
            rank=rank.rank,
            pid=rank.pid,
            returncode=rank.returncode,
            ended_at=rank.ended_at,
            told_to_end=rank.told_to_end,
            onset=rank.onset,
            stderr=[line.decode(errors="replace").rstrip("\r\n") for line in rank.tail],
            visible=visible,
            host=rank.host,
            lost_peer=self._socket_closed and rank.returncode == report.SOCKET_CLOSED_CODE,
        )

    def _make_result(
        self, cause: str, ended: Sequence[report.EndedRank], first: report.EndedRank | None
    ) -> JobResult:
        launcher = self._ranks[0].returncode or 0
        fixed = {"done": 0, "timeout": 124, "output": 1, "orphaned": 137, "start": 1}
        if cause == "signal":
            assert self._ending is not None
            all_well = not self._running() and not any(entry.returncode for entry in ended)
            code = 0 if all_well else 128 + self._ending.signum
        elif cause == "failure":
            failed = first.returncode if first else launcher
            code = processes.shell_exit_code(failed) or 1
        else:
            code = fixed[cause]
        results = [
            RankResult(
                rank=entry.rank,
                pid=entry.pid,
                exit_code=processes.shell_exit_code(entry.returncode),
                signal=-entry.returncode if entry.returncode < 0 else None,
                ended_by_launcher=entry.told_to_end and entry.returncode != 0,
            )
            for entry in ended
        ]
        return JobResult(code, cause, first.rank if first else None, results)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
