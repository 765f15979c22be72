"""The options of ``horovodrun`` that ``hvdrun`` takes without needing them, and those it refuses.

Command lines that were written for ``horovodrun`` work as they are, as far as they can be meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["IGNORED", "REFUSED", "explain_ignored", "explain_refused"]


class HorovodOption(NamedTuple):
    """Options that belong together.

    Attributes:
        flags: their names.
        values: how many words follow each of them.
        why: why they are ignored or refused.
    """

    flags: tuple[str, ...]
    values: int
    why: str


_NO_CYCLE = "collectives start when the last rank has called them; there is nothing to tune"
_NO_LIBRARY = "the ranks exchange data through shared memory and MPI, not through this library"
_NO_CACHE = "the hosts are checked each time, all at once"
_NO_LOG = "there is no such log; --verbose says what is started"

IGNORED = (
    HorovodOption(("--gloo",), 0, _NO_LIBRARY),
    HorovodOption(("--num-nccl-streams", "--gloo-timeout-seconds"), 1, _NO_LIBRARY),
    HorovodOption(("--mpi-threads-disable", "--no-mpi-threads-disable"), 0, _NO_LIBRARY),
    HorovodOption(("--disable-cache",), 0, _NO_CACHE),
    HorovodOption(
        (
            "--cycle-time-ms",
            "--cache-capacity",
            "--autotune-log-file",
            "--autotune-warmup-samples",
            "--autotune-steps-per-sample",
            "--autotune-bayes-opt-max-samples",
            "--autotune-gaussian-process-noise",
            "--thread-affinity",
        ),
        1,
        _NO_CYCLE,
    ),
    HorovodOption(
        (
            "--autotune",
            "--no-autotune",
            "--hierarchical-allreduce",
            "--no-hierarchical-allreduce",
            "--hierarchical-allgather",
            "--no-hierarchical-allgather",
            "--torus-allreduce",
            "--no-torus-allreduce",
        ),
        0,
        _NO_CYCLE,
    ),
    HorovodOption(("--log-level",), 1, _NO_LOG),
    HorovodOption(
        (
            "--log-with-timestamp",
            "--log-without-timestamp",
            "--log-hide-timestamp",
            "--no-log-hide-timestamp",
        ),
        0,
        _NO_LOG,
    ),
)

_FIXED = "the number of ranks is fixed; leave it out, and start the job again after a failure"

REFUSED = (
    HorovodOption(
        (
            "--min-np",
            "--min-num-proc",
            "--max-np",
            "--max-num-proc",
            "--slots-per-host",
            "--elastic-timeout",
            "--reset-limit",
            "--host-discovery-script",
        ),
        1,
        _FIXED,
    ),
    HorovodOption(("--blacklist-cooldown-range",), 2, _FIXED),
)


def explain_ignored(flags: Sequence[str]) -> list[str]:
    """One line for each reason why some of these flags were ignored."""
    lines = []
    for why in dict.fromkeys(option.why for option in IGNORED):
        known = {flag for option in IGNORED if option.why == why for flag in option.flags}
        given = [flag for flag in dict.fromkeys(flags) if flag in known]
        if given:
            lines.append(f"{', '.join(given)} ignored: {why}.")
    return lines


def explain_refused(flag: str) -> str | None:
    """Why ``hvdrun`` cannot do what this flag asks for; None for other flags."""
    for option in REFUSED:
        if flag in option.flags:
            return f"{flag} is an option of horovodrun that hvdrun does not have: {option.why}."
    return None
