"""What the launcher says when a job has ended: which rank failed first, and how."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvd_keras.launch.ending import Ending
from hvd_keras.launch.job import Job, JobResult, RankResult
from hvd_keras.launch.processes import shell_exit_code, signal_name

# How a collective says that it failed because another rank is gone (ops/transport/shm).
_LOST_PEER = re.compile(
    r"\brank \d+ (\(host .*, pid \d+\) (died: |failed with )|has left the job )"
)
# What Open MPI 5 ends a process with whose peer has died, at times before it can say anything.
SOCKET_CLOSED_CODE = 14
_TAIL_LINES = 30
_LONGEST_TRACEBACK = 120
# A traceback that was printed longer before the end is not what ended the process.
_ONSET_SECONDS = 10.0
_HEADS = ("Traceback (most recent call last)", "Fatal Python error")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class EndedRank(NamedTuple):
    """How a rank ended, and what is known about why.

    Attributes:
        returncode: exit code, or minus the signal's number.
        ended_at: when it ended (``time.monotonic``).
        told_to_end: whether it had been sent a signal by then.
        onset: when it began to print its last traceback, or None.
        stderr: the last lines of its stderr.
        visible: for a number of lines, whether the user has just seen that many of them.
        host: name of its host; empty for this one.
        lost_peer: whether it is known to have failed over the loss of another rank. Most say so
            themselves, in their last lines.
    """

    rank: int
    pid: int
    returncode: int
    ended_at: float
    told_to_end: bool
    onset: float | None
    stderr: list[str]
    visible: Callable[[int], bool] = lambda lines: False
    host: str = ""
    lost_peer: bool = False


def first_failure(ranks: Sequence[EndedRank]) -> EndedRank | None:
    """The rank that failed first, by itself; None if there is none.

    A process needs time to end after its error, in which its peers may fail over its loss and end
    before it. So what counts is when it began to print its traceback, where there is one; and a
    rank that says itself that it failed over another one's loss comes last.
    """
    failed = [entry for entry in ranks if entry.returncode != 0 and not entry.told_to_end]
    return min(failed, key=lambda entry: (_is_victim(entry), _failed_at(entry)), default=None)


def _is_victim(entry: EndedRank) -> bool:
    return entry.lost_peer or any(_LOST_PEER.search(line) for line in telling_lines(entry.stderr))


def _failed_at(entry: EndedRank) -> float:
    if entry.onset is not None and entry.ended_at - entry.onset < _ONSET_SECONDS:
        return min(entry.onset, entry.ended_at)
    return entry.ended_at


def make_result(ranks: Sequence[EndedRank], ending: Ending | None) -> JobResult:
    """The result of a job whose ranks have ended as given."""
    cause = ending.cause if ending else "done"
    first = first_failure(ranks)
    return JobResult(
        exit_code=_exit_code(ranks, ending, first),
        cause=cause,
        first_failure=first.rank if first and cause == "failure" else None,
        ranks=[
            RankResult(
                rank=entry.rank,
                pid=entry.pid,
                exit_code=shell_exit_code(entry.returncode),
                signal=-entry.returncode if entry.returncode < 0 else None,
                ended_by_launcher=entry.told_to_end and entry.returncode != 0,
            )
            for entry in ranks
        ],
    )


def _exit_code(ranks: Sequence[EndedRank], ending: Ending | None, first: EndedRank | None) -> int:
    cause = ending.cause if ending else "done"
    fixed = {"done": 0, "timeout": 124, "output": 1, "orphaned": 137}
    if cause in fixed:
        return fixed[cause]
    if cause == "failure":
        return shell_exit_code(first.returncode) if first else 1
    assert ending is not None
    bad = sorted((entry.ended_at, entry.returncode) for entry in ranks if entry.returncode)
    if any(code == -9 for _, code in bad):
        return 128 + ending.signum
    return shell_exit_code(bad[0][1]) if bad else 0


def summary(
    job: Job,
    ranks: Sequence[EndedRank],
    ending: Ending | None,
    running: Sequence[int] = (),
    flight_recorder: str | None = None,
) -> list[str]:
    """The last lines for the user, the most telling one last; none if all went well.

    Args:
        running: the ranks that were still running when the job's time was up.
        flight_recorder: the folder with the ranks' flight recorders, if they have written them.
    """
    lines = _summary(job, ranks, ending, running)
    if lines and flight_recorder:
        lines.insert(-1, f"hvdrun: what each rank did last: hvd-diagnose {flight_recorder}")
    return lines


def _summary(
    job: Job, ranks: Sequence[EndedRank], ending: Ending | None, running: Sequence[int]
) -> list[str]:
    if ending is None or ending.cause in ("done", "orphaned"):
        return []
    if ending.cause == "failure":
        first = first_failure(ranks)
        return _failure_summary(job, ranks, first) if first else []
    if ending.cause == "timeout":
        names = _rank_list(running) if running else "no rank"
        return [
            f"hvdrun: the job took longer than {job.timeout:g} s and was ended; "
            f"{names} of {job.num_proc} had not finished."
        ]
    if ending.cause == "output":
        return ["hvdrun: the ranks' output could not be written any more; the job was ended."]
    killed = [entry.rank for entry in ranks if entry.returncode == -9]
    note = f"; {_rank_list(killed)} had to be killed" if killed else ""
    return [f"hvdrun: ended by {signal_name(ending.signum)}{note}."]


def _failure_summary(job: Job, ranks: Sequence[EndedRank], first: EndedRank) -> list[str]:
    lines = telling_lines(first.stderr)
    if first.visible(len(lines)):  # nothing came after it: once is enough
        lines = []
    text = [f"hvdrun: rank {first.rank} wrote last to stderr:"] if lines else []
    text += ["  " + line for line in lines]
    others = [entry for entry in ranks if entry.rank != first.rank]
    ended = [entry.rank for entry in others if entry.told_to_end and entry.returncode != 0]
    failed = [entry for entry in others if not entry.told_to_end and entry.returncode != 0]
    verdict = (
        f"hvdrun: rank {first.rank} of {job.num_proc} (host {first.host or os.uname().nodename}, "
        f"pid {first.pid}) failed first: {describe(first.returncode)}."
    )
    if failed:
        how = ", ".join(f"{entry.rank} ({describe(entry.returncode)})" for entry in failed[:8])
        more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
        verdict += f" Then rank{'s' * (len(failed) > 1)} {how}{more} failed, too."
    if ended:
        verdict += f" hvdrun ended {_rank_list(ended)}."
    return [*text, *_hints(job, first.stderr), verdict]


def _hints(job: Job, stderr: Sequence[str]) -> list[str]:
    missing = any(line.startswith("ModuleNotFoundError: ") for line in stderr[-_TAIL_LINES:])
    if missing and job.program != sys.executable:
        return [
            f"hvdrun: the ranks ran {job.program}; this hvdrun belongs to {sys.executable}. If "
            "the missing module is installed for the latter, write that path for python."
        ]
    return []


def describe(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    hint = {9: " (out of memory?)"}.get(-returncode, "")
    return f"killed by {signal_name(-returncode)}{hint}"


def _rank_list(ranks: Sequence[int]) -> str:
    names = [str(rank) for rank in ranks[:8]]
    if len(ranks) > 8:
        names.append(f"... ({len(ranks)} in all)")
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(names)}"


def telling_lines(stderr: Sequence[str]) -> list[str]:
    """The end of ``stderr`` that tells most: the last traceback, or the last 30 lines."""
    start = max(0, len(stderr) - _TAIL_LINES)
    heads = [at for at, line in enumerate(stderr) if line.startswith(_HEADS)]
    if heads:
        first = heads[-1]
        for head in reversed(heads[:-1]):  # exceptions that the last one is chained to
            if not any(line.startswith(_CHAINED) for line in stderr[head:first]):
                break
            first = head
        start = first
    lines = list(stderr[start:])
    if len(lines) > _LONGEST_TRACEBACK:
        half = _LONGEST_TRACEBACK // 2
        left_out = f"... ({len(lines) - 2 * half} lines left out)"
        lines = [*lines[:half], left_out, *lines[-half:]]
    return lines
