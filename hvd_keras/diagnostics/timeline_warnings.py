"""What a user should know about timelines, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_keras.diagnostics.timeline_analysis import Analysis
from hvd_keras.diagnostics.timeline_files import RankTimeline

__all__ = ["warnings_of"]

_LATE_SHARE = 0.5  # of the steps, in which one rank comes last
_LATE_SECONDS = 0.0005
_LATE_OF_STEP = 0.02
_EXPOSED_SHARE = 0.2
_SLOW = 0.25  # of memcpy
_LARGE = 1 << 20  # bytes from which bandwidth is what counts
_SMALL = 64 << 10
_MANY_SMALL = 20  # in a step


def warnings_of(analysis: Analysis, timelines: Sequence[RankTimeline]) -> list[str]:
    """Returns one sentence or two for each thing that is worth a look."""
    return [
        *_stragglers(analysis),
        *_exposed(analysis),
        *_slow_collectives(analysis),
        *_small_collectives(analysis),
        *_failures(analysis),
        *_incomplete(analysis, timelines),
    ]


def _stragglers(analysis: Analysis) -> list[str]:
    step = _mean_step(analysis)
    found = []
    for share in analysis.shares:
        if share.last_in < _LATE_SHARE or share.late < max(_LATE_SECONDS, _LATE_OF_STEP * step):
            continue
        unit = "steps" if analysis.has_steps else "collectives"
        if analysis.has_steps:
            of_step = f", {share.late / step:.0%} of a step" if step else ""
        else:
            of_step = ""
        found.append(
            f"Rank {share.rank} arrives last in {share.last_in:.0%} of the {unit}, "
            f"{_time(share.late)} late{of_step}. The others wait for it: it has more to "
            "do, a slower processor or disk, or shares its cores with something else."
        )
    return found


def _exposed(analysis: Analysis) -> list[str]:
    total = sum(share.total for share in analysis.shares)
    exposed = sum(share.exposed for share in analysis.shares)
    if not analysis.has_steps or total == 0 or exposed < _EXPOSED_SHARE * total:
        return []
    return [
        f"The ranks wait {exposed / total:.0%} of the step for communication that nothing hides. "
        "Larger batches, hvd.Compression.fp16, or more backward_passes_per_step make it less."
    ]


def _slow_collectives(analysis: Analysis) -> list[str]:
    found = []
    for cost in analysis.costs:
        large = cost.bytes >= _LARGE and cost.kind == "ALLREDUCE" and cost.transport == "SHM"
        if large and 0 < cost.bandwidth < _SLOW * analysis.memcpy:
            found.append(
                f"{cost.name} moves {_bandwidth(cost.bandwidth)}, "
                f"{cost.bandwidth / analysis.memcpy:.0%} of what memcpy reaches here: are there "
                "more ranks than cores, or do others use the memory?"
            )
    return found[:3]


def _small_collectives(analysis: Analysis) -> list[str]:
    steps = max((share.steps for share in analysis.shares), default=0)
    if not analysis.has_steps or steps == 0:
        return []
    small = sum(c.calls for c in analysis.costs if c.bytes < _SMALL and c.kind == "ALLREDUCE")
    if small / steps < _MANY_SMALL:
        return []
    return [
        f"There are {small / steps:.0f} allreduces of less than 64 KiB in a step. "
        "hvd.grouped_allreduce, or a larger HVD_FUSION_THRESHOLD, sends them together."
    ]


def _failures(analysis: Analysis) -> list[str]:
    return [
        f"{name} ended with an error ({code}), {times} times."
        for (name, code), times in analysis.failed.items()
    ]


def _incomplete(analysis: Analysis, timelines: Sequence[RankTimeline]) -> list[str]:
    found = []
    missing = sorted(set(range(analysis.size)) - set(analysis.ranks))
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        found.append(
            f"The files of {len(missing)} of {analysis.size} ranks are not here ({listed}): "
            "lateness is that of the others."
        )
    for timeline in timelines:
        if timeline.dropped:
            found.append(
                f"Rank {timeline.rank} has lost {timeline.dropped} records: more came than could "
                "be written."
            )
        if timeline.clock_error_us is None:
            found.append(
                f"The clock of rank {timeline.rank} (host {timeline.host}) could not be compared "
                "with rank 0's."
            )
        elif timeline.clock_error_us > 1000:
            found.append(
                f"Times of rank {timeline.rank} (host {timeline.host}) may be wrong by "
                f"{timeline.clock_error_us / 1000:.1f} ms."
            )
        found.extend(timeline.notes)
    if not analysis.has_steps:
        found.append(
            "There are no steps in these timelines, since fit() was not used: shares are of the "
            "time from the first collective to the last."
        )
    return found


def _mean_step(analysis: Analysis) -> float:
    steps = sum(share.steps for share in analysis.shares)
    return sum(share.total for share in analysis.shares) / steps if steps else 0.0


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def _bandwidth(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"
