"""What the launching process and its supervisor tell each other: plain data, sent as JSON."""

from __future__ import annotations

import dataclasses
import json
import signal
from typing import Any

# The signals that hvdrun passes on to the ranks.
PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

# A peer that died is noticed within 2 s; what the survivors then say should be printed, too.
DEFAULT_REPORT_SECONDS = 3.0
DEFAULT_GRACE_SECONDS = 5.0
# Someone who sends SIGTERM may want a checkpoint first.
DEFAULT_SIGNAL_GRACE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class MpiLaunch:
    """What the supervisor of an MPI launcher has to know beyond its command.

    Attributes:
        name: the launcher's, for the user.
        hosts: the hosts of the job.
        start_seconds: how long it may take until all ranks run.
    """

    name: str
    hosts: list[str]
    start_seconds: float


@dataclasses.dataclass(frozen=True)
class Job:
    """One job on this host, as the supervisor needs it.

    Attributes:
        command: what each rank runs.
        program: path of the program in ``command[0]``.
        num_proc: number of ranks.
        output_dir: directory for ``rank.<r>/stdout`` and ``stderr``, or None.
        timestamps: whether each line of output starts with the time.
        prefix: whether each line of output says which rank wrote it.
        report_seconds: how long the other ranks may go on after one failed.
        grace_seconds: seconds from SIGTERM to SIGKILL after a failure.
        signal_grace_seconds: seconds from a signal that was passed on to SIGKILL.
        timeout: seconds after which the job is ended, or None.
        verbose: whether to say what is started.
        mpi: for a job over MPI, whose launcher is ``command``; else None.
    """

    command: list[str]
    program: str
    num_proc: int
    output_dir: str | None = None
    timestamps: bool = False
    prefix: bool = True
    report_seconds: float = DEFAULT_REPORT_SECONDS
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    signal_grace_seconds: float = DEFAULT_SIGNAL_GRACE_SECONDS
    timeout: float | None = None
    verbose: bool = False
    mpi: MpiLaunch | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Job:
        """The inverse of :meth:`to_json`."""
        fields = json.loads(text)
        mpi = fields.pop("mpi")
        return cls(**fields, mpi=MpiLaunch(**mpi) if mpi else None)


@dataclasses.dataclass(frozen=True)
class RankResult:
    """How one rank ended.

    Attributes:
        rank: the rank.
        pid: its process id.
        exit_code: its exit code, 128 + the signal's number where a signal ended it.
        signal: number of the signal that ended it, or None.
        ended_by_launcher: whether it had been told to end when it did.
    """

    rank: int
    pid: int
    exit_code: int
    signal: int | None
    ended_by_launcher: bool


@dataclasses.dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: 0, or what ``hvdrun`` exits with.
        cause: "done", "failure" (of a rank), "signal", "timeout", "output" (it could not be
            written) or "orphaned" (the launching process went away).
        first_failure: the rank that failed first, or None.
        ranks: one entry per rank.
    """

    exit_code: int
    cause: str
    first_failure: int | None
    ranks: list[RankResult]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> JobResult:
        """The inverse of :meth:`to_dict`."""
        ranks = [RankResult(**entry) for entry in data["ranks"]]
        return cls(data["exit_code"], data["cause"], data["first_failure"], ranks)
