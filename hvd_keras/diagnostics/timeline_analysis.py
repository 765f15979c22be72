"""What timelines say about a job: shares of its time, who comes late, what costs most."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from hvd_keras.diagnostics.timeline_files import RankTimeline

__all__ = ["Analysis", "Cost", "RankShare", "analyse"]

_MICRO = 1e-6
_TOP = 10
_TRACED = 2  # steps; with more the first is left out


@dataclass
class Collective:
    """One call of a collective on one rank; times in microseconds."""

    rank: int
    kind: str
    name: str
    occurrence: int
    process_set: int
    bytes: int
    begin: float
    end: float
    agreed: float = 0.0
    started: float = 0.0
    last_rank: int = -1
    ranks: int = 1
    late_on_host: float = 0.0
    transport: str = ""
    failed: str = ""

    @property
    def key(self) -> tuple[int, str, int]:
        return (self.process_set, self.name, self.occurrence)


@dataclass
class RankShare:
    """How one rank has spent the time of its steps, in seconds."""

    rank: int
    steps: int
    total: float
    exposed: float  # waiting for collectives
    hidden: float  # collectives were under way while it computed
    late: float = 0.0  # after the first rank; the median of the steps
    last_in: float = 0.0  # share of the steps in which it came last

    @property
    def compute(self) -> float:
        return max(self.total - self.exposed, 0.0)


@dataclass
class Cost:
    """A collective, over all its calls and ranks; times in seconds, the mean of a call."""

    name: str
    kind: str
    transport: str
    calls: int
    bytes: int
    total: float  # of all calls of one rank, from call to end
    waited: float  # for other ranks to call it
    queued: float
    executed: float
    last_rank: int  # most often
    last_share: float

    @property
    def bandwidth(self) -> float:
        """Bytes in a second, while it is executed."""
        return self.bytes / self.executed if self.executed > 0 else 0.0


@dataclass
class Analysis:
    """What the timelines of a job say.

    Attributes:
        size: of the job.
        ranks: those whose timelines are here.
        has_steps: whether the training has marked its steps.
        step_times: of each rank: when each step began, since the first of all, and how long it
            took, in seconds.
        shares: of each rank.
        costs: of each collective, the most expensive first.
        memcpy: bytes that a rank copied in a second.
        failed: how often which collective ended with which error.
    """

    size: int
    ranks: list[int]
    has_steps: bool
    step_times: dict[int, list[tuple[float, float]]]  # by rank: (begin, duration), seconds
    shares: list[RankShare]
    costs: list[Cost]
    memcpy: float
    failed: Counter[tuple[str, str]]

    @property
    def top(self) -> list[Cost]:
        return self.costs[:_TOP]


def analyse(timelines: Sequence[RankTimeline]) -> Analysis:
    """Returns what the timelines of one job say; they need not be those of all ranks."""
    calls = {timeline.rank: _collectives(timeline) for timeline in timelines}
    windows = {timeline.rank: _named(timeline, "STEP") for timeline in timelines}
    has_steps = any(windows.values())
    start = min((b for w in windows.values() for b, _ in w), default=0.0)
    step_times = {
        rank: [((b - start) * _MICRO, (e - b) * _MICRO) for b, e in some]
        for rank, some in windows.items()
        if has_steps
    }
    if not has_steps:
        windows = {rank: _whole(some) for rank, some in calls.items()}
    elif all(len(some) > _TRACED for some in windows.values()):
        # The first step traces and compiles the functions, which none of the others does.
        windows = {rank: some[1:] for rank, some in windows.items()}
    shares = [
        _share(timeline.rank, windows[timeline.rank], calls[timeline.rank], timeline)
        for timeline in timelines
    ]
    _add_lateness(shares, windows, calls)
    return Analysis(
        size=timelines[0].size,
        ranks=[timeline.rank for timeline in timelines],
        has_steps=has_steps,
        step_times=step_times,
        shares=shares,
        costs=_costs(calls),
        memcpy=mean([t.memcpy for t in timelines if t.memcpy > 0] or [0.0]),
        failed=Counter((c.name, c.failed) for some in calls.values() for c in some if c.failed),
    )


def _named(timeline: RankTimeline, name: str) -> list[tuple[float, float]]:
    return sorted(
        (event["ts"], event["ts"] + float(event["dur"]))
        for event in timeline.slices
        if event["name"] == name and "collective" not in (event.get("args") or {})
    )


def _whole(calls: Sequence[Collective]) -> list[tuple[float, float]]:
    if not calls:
        return []
    return [(min(c.begin for c in calls), max(c.end for c in calls))]


def _collectives(timeline: RankTimeline) -> list[Collective]:
    """The calls, by their begin. Their parts lie below them, on the same track."""
    found: list[Collective] = []
    current: dict[int, Collective] = {}
    for event in timeline.slices:
        args: dict[str, Any] = event.get("args") or {}
        begin, end = event["ts"], event["ts"] + float(event["dur"])
        track, name = event.get("tid", 0), str(event["name"])
        if "collective" in args:
            current[track] = Collective(
                timeline.rank,
                str(args["collective"]),
                name,
                int(args.get("occurrence", 0)),
                int(args.get("process_set", 0)),
                int(args.get("bytes", 0)),
                begin,
                end,
                failed=str(args.get("failed", "")),
            )
            found.append(current[track])
        elif track in current and name == f"NEGOTIATE_{current[track].kind}":
            call = current[track]
            call.agreed, call.started = end, end
            call.last_rank = int(args.get("last_rank", -1))
            call.ranks = int(args.get("ranks", 1))
            call.late_on_host = float(args.get("late_us", 0))
        elif track in current and name == f"{_transport(name)}_{current[track].kind}":
            current[track].started = begin
            current[track].transport = _transport(name)
    return sorted(found, key=lambda call: call.begin)


def _transport(name: str) -> str:
    return name.split("_", 1)[0]


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _within(windows: Sequence[tuple[float, float]], merged: Sequence[tuple[float, float]]) -> float:
    """How much of the windows, which are in order, the merged intervals cover."""
    total, at = 0.0, 0
    for begin, end in windows:
        while at < len(merged) and merged[at][1] <= begin:
            at += 1
        i = at
        while i < len(merged) and merged[i][0] < end:
            total += max(min(end, merged[i][1]) - max(begin, merged[i][0]), 0.0)
            i += 1
    return total


def _share(
    rank: int,
    windows: list[tuple[float, float]],
    calls: list[Collective],
    timeline: RankTimeline,
) -> RankShare:
    total = sum(end - begin for begin, end in windows)
    exposed = _within(windows, _union(_named(timeline, "EXPOSED")))
    under_way = _within(windows, _union((call.begin, call.end) for call in calls))
    hidden = max(under_way - exposed, 0.0)
    return RankShare(rank, len(windows), total * _MICRO, exposed * _MICRO, hidden * _MICRO)


def _add_lateness(
    shares: list[RankShare],
    windows: dict[int, list[tuple[float, float]]],
    calls: dict[int, list[Collective]],
) -> None:
    """Compares when the ranks have called the same collectives, step by step."""
    by_key: dict[tuple, dict[int, Collective]] = defaultdict(dict)
    for rank, some in calls.items():
        for call in some:
            by_key[call.key][rank] = call
    if len(calls) == 1:
        return _lateness_by_one(shares[0], next(iter(calls.values())))
    begins = {rank: [begin for begin, _ in some] for rank, some in windows.items()}
    late: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for by_rank in by_key.values():
        if len(by_rank) < 2:
            continue
        first = min(call.begin for call in by_rank.values())
        leader = min(by_rank)
        step = bisect_right(begins[leader], by_rank[leader].begin) - 1
        if step < 0 or by_rank[leader].begin > windows[leader][step][1]:
            continue  # between steps: evaluation, objects, ends of epochs
        for rank, call in by_rank.items():
            late[step][rank].append(call.begin - first)
    lasts: Counter[int] = Counter()
    means: dict[int, list[float]] = defaultdict(list)
    for by_rank_late in late.values():
        of_step = {rank: mean(some) for rank, some in by_rank_late.items()}
        lasts[max(of_step, key=lambda rank: of_step[rank])] += 1
        for rank, value in of_step.items():
            means[rank].append(value)
    for share in shares:
        share.late = median(means[share.rank]) * _MICRO if means[share.rank] else 0.0
        share.last_in = lasts[share.rank] / len(late) if late else 0.0


def _lateness_by_one(share: RankShare, calls: list[Collective]) -> None:
    """Of one rank alone there is what it knew itself."""
    others = [call for call in calls if call.ranks > 1]
    if others:
        share.late = median(call.late_on_host for call in others) * _MICRO
        share.last_in = sum(call.last_rank == share.rank for call in others) / len(others)


def _last_ranks(calls: dict[int, list[Collective]]) -> dict[tuple, int]:
    """Who called a collective last, where all that took part have written a timeline.

    By their clocks, since a host that follows a plan knows only who was last of its own ranks.
    """
    latest: dict[tuple, Collective] = {}
    count: Counter[tuple] = Counter()
    for some in calls.values():
        for call in some:
            count[call.key] += 1
            before = latest.setdefault(call.key, call)
            if call.begin > before.begin:
                latest[call.key] = call
    return {key: call.rank for key, call in latest.items() if count[key] == call.ranks > 1}


def _costs(calls: dict[int, list[Collective]]) -> list[Cost]:
    groups: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    last_of = _last_ranks(calls)
    for some in calls.values():
        for call in some:
            if not call.failed:
                groups[call.name, call.kind].append(call)
    costs = []
    for (name, kind), some in groups.items():
        ranks = len({call.rank for call in some})
        lasts = Counter(last_of.get(call.key, call.last_rank) for call in some)
        last_rank, times = lasts.most_common(1)[0]
        costs.append(
            Cost(
                name=name,
                kind=kind,
                transport=next((c.transport for c in some if c.transport), ""),
                calls=len(some) // ranks,
                bytes=int(median(call.bytes for call in some)),
                total=sum(call.end - call.begin for call in some) / ranks * _MICRO,
                waited=mean(max(call.agreed - call.begin, 0) for call in some) * _MICRO,
                queued=mean(max(call.started - call.agreed, 0) for call in some) * _MICRO,
                executed=median(max(call.end - call.started, 0) for call in some) * _MICRO,
                last_rank=last_rank,
                last_share=times / len(some),
            )
        )
    return sorted(costs, key=lambda cost: -cost.total)
