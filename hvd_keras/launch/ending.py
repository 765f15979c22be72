"""How a job is brought to its end: which steps are taken, and when."""

from __future__ import annotations

import collections
import enum

from hvd_keras.launch.job import Job

# A process that the ranks left behind often ends by itself just after them (multiprocessing's
# resource tracker, which would leak what it tracks if it were killed).
LEFTOVER_SECONDS = 1.0
# Nothing survives SIGKILL except in the kernel (a dead network file system): do not wait for it.
UNKILLABLE_SECONDS = 10.0


class Step(enum.Enum):
    """What is done to all processes of the job."""

    TERMINATE = "SIGTERM"
    KILL = "SIGKILL"
    GIVE_UP = "give up"


class Ending:
    """A cause and the steps that are still to be taken.

    Attributes:
        cause: as in :class:`hvd_keras.launch.job.JobResult`.
        signum: the signal that the user sent, for the cause "signal".
    """

    def __init__(self, cause: str, now: float, *steps: tuple[float, Step], signum: int = 0) -> None:
        self.cause = cause
        self.signum = signum
        self._steps: collections.deque[tuple[float, Step]] = collections.deque()
        for delay, step in steps:
            now += delay
            self._steps.append((now, step))
        self._steps.append((now + UNKILLABLE_SECONDS, Step.GIVE_UP))

    @property
    def next_time(self) -> float:
        """When the next step is due."""
        return self._steps[0][0] if self._steps else float("inf")

    def due(self, now: float) -> Step | None:
        """Takes the next step off the list if its time has come."""
        return self._steps.popleft()[1] if self.next_time <= now else None


def after_failure(job: Job, now: float) -> Ending:
    """A rank failed: the others may report what they saw, then they are ended."""
    return Ending(
        "failure", now, (job.report_seconds, Step.TERMINATE), (job.grace_seconds, Step.KILL)
    )


def after_signal(job: Job, now: float, signum: int) -> Ending:
    """The user's signal was passed on: the ranks end by themselves, or not."""
    return Ending("signal", now, (job.signal_grace_seconds, Step.KILL), signum=signum)


def at_once(cause: str, job: Job, now: float) -> Ending:
    """Nothing is to be waited for."""
    return Ending(cause, now, (0.0, Step.TERMINATE), (job.grace_seconds, Step.KILL))


def by_force(cause: str, now: float, signum: int = 0) -> Ending:
    """The user insists."""
    return Ending(cause, now, (0.0, Step.KILL), signum=signum)


def of_leftovers(current: Ending | None, job: Job, now: float) -> Ending:
    """All ranks have ended, but not all that they started."""
    steps = ((LEFTOVER_SECONDS, Step.TERMINATE), (job.grace_seconds, Step.KILL))
    if current is None:
        return Ending("done", now, *steps)
    return Ending(current.cause, now, *steps, signum=current.signum)
