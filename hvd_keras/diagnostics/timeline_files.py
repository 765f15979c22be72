"""Reading timelines: the files of all ranks of one job, on one clock."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["RankTimeline", "TimelineError", "read_timelines"]

# What the first element of each file is called.
_IDENTITY = "hvd_keras_timeline"
_OF_RANK = re.compile(r"(?:^|\.)rank-(\d+)$")
_OF_PART = re.compile(r"\.part-(\d+)$")


class TimelineError(ValueError):
    """A file is no timeline, or files do not belong together; the message says which."""


@dataclass
class RankTimeline:
    """What one rank has written.

    Attributes:
        rank, size, host: who it was.
        paths: its files, oldest first.
        events: all events, oldest part first, as Chrome's format has them; ``ts`` is on the clock
            of rank 0's host.
        memcpy: how many bytes this rank copied in a second; 0 where it is not known.
        clock_error_us: how wrong ``ts`` may be; None where nothing is known of that.
        dropped: records that are missing.
        notes: what the reader should be told about the files.
    """

    rank: int
    size: int
    host: str
    paths: list[Path] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    memcpy: float = 0.0
    clock_error_us: float | None = 0.0
    dropped: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def slices(self) -> Iterable[dict[str, Any]]:
        """The events that have a duration."""
        return (event for event in self.events if event.get("ph") == "X")


def read_timelines(paths: Iterable[str | Path], *, beside: bool = True) -> list[RankTimeline]:
    """Reads the timelines of one job.

    Args:
        paths: files, or folders of them.
        beside: whether to read, too, what the same job has written beside these files: other
            ranks' files and earlier parts.

    Returns:
        One for each rank, by rank.

    Raises:
        TimelineError: a file cannot be read, or is no timeline; files are of different jobs.
    """
    named = [file for path in paths for file in _files_of(Path(path))]
    parts = [_read_part(path) for path in dict.fromkeys(named)]
    if not parts:
        raise TimelineError("no timeline was given")
    if beside:
        known = {part.path.resolve() for part in parts}
        for path in _beside(dict.fromkeys(named)):
            if path.resolve() not in known:
                part = _try_part(path)
                if part is not None and part.belongs_to(parts):
                    parts.append(part)
    _check_one_job(parts)
    by_rank: dict[int, list[_Part]] = {}
    for part in sorted(parts, key=lambda part: (part.rank, part.number)):
        by_rank.setdefault(part.rank, []).append(part)
    return [_joined(some) for _, some in sorted(by_rank.items())]


@dataclass
class _Part:
    path: Path
    identity: dict[str, Any]
    events: list[dict[str, Any]]
    is_cut: bool

    @property
    def rank(self) -> int:
        return int(self.identity["rank"])

    @property
    def number(self) -> int:
        return int(self.identity["part"])

    @property
    def job(self) -> tuple[int, ...]:
        return (int(self.identity["size"]),)

    def span(self) -> tuple[float, float]:
        """From when to when, in microseconds since 1970."""
        offset = float(self.identity["realtime_minus_ts_ns"]) / 1e3
        times = [float(e["ts"]) + offset for e in self.events if e.get("ph") != "M"]
        return (min(times), max(times)) if times else (0.0, 0.0)

    def belongs_to(self, others: list[_Part]) -> bool:
        """Whether it looks like a file of the same job: not one that an earlier job has left."""
        if self.job != others[0].job:
            return False
        same = [other for other in others if other.rank == self.rank]
        if same:
            return all(
                other.identity["process"] == self.identity["process"]
                and other.number != self.number
                for other in same
            )
        begin, end = self.span()
        return any(
            begin <= other.span()[1] and other.span()[0] <= end for other in others if other.events
        )


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.glob("*.json")) if _try_part(file) is not None]
    if not files:
        raise TimelineError(f"{path} is a folder without a timeline of hvd_keras in it")
    return files


def _beside(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        stem = _OF_PART.sub("", path.name[: -len(path.suffix)] if path.suffix else path.name)
        base = _OF_RANK.sub("", stem)
        # rank-R.json in a folder, or NAME.rank-R.json beside NAME.json.
        pattern = f"{_escaped(base)}.*json" if base else "rank-*.json"
        found.update(dict.fromkeys(sorted(path.parent.glob(pattern))))
    return list(found)


def _escaped(name: str) -> str:
    return re.sub(r"([\[*?])", r"[\1]", name)


def _try_part(path: Path) -> _Part | None:
    try:
        return _read_part(path)
    except TimelineError:
        return None


def _read_part(path: Path) -> _Part:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TimelineError(f"{path} cannot be read: {reason}") from None
    if not text.strip():
        raise TimelineError(f"{path} is empty; expected a timeline of hvd_keras")
    content, is_cut = _parsed(text)
    expected = "expected a timeline that HVD_TIMELINE or hvd.start_timeline() has made"
    if content is None:
        raise TimelineError(f"{path} is not JSON; {expected}")
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TimelineError(f"{path} is JSON, but no list of events; {expected}")
    identities = [e.get("args") for e in events if e.get("name") == _IDENTITY]
    if len(identities) > 1:
        raise TimelineError(
            f"{path} has the events of {len(identities)} files, as hvd-timeline merge makes it; "
            "give the files that the ranks have written"
        )
    if not identities or not isinstance(identities[0], dict):
        raise TimelineError(
            f"{path} has {len(events)} events, but does not say which rank has written it; "
            f"{expected}"
        )
    missing = {"rank", "size", "part", "process", "realtime_minus_ts_ns"} - set(identities[0])
    if missing:
        raise TimelineError(f"{path} does not say its {', '.join(sorted(missing))}; {expected}")
    return _Part(path, identities[0], events, is_cut)


def _parsed(text: str) -> tuple[Any, bool]:
    """Returns the JSON, None for none; and whether its end had to be added."""
    try:
        return json.loads(text), False
    except ValueError:
        pass
    # On a file system without an exchange of names, a kill can have cut it: without its last line.
    lines = text.rstrip().rsplit("\n", 1)[0].rstrip().rstrip(",")
    try:
        return json.loads(lines + "\n]"), True
    except ValueError:
        return None, False


def _check_one_job(parts: list[_Part]) -> None:
    first = parts[0]
    seen: dict[tuple[int, int], _Part] = {}
    for part in parts:
        if part.job != first.job:
            raise TimelineError(
                f"{first.path} is of a job of {first.job[0]} ranks, {part.path} of one of "
                f"{part.job[0]}; give the files of one job"
            )
        other = seen.setdefault((part.rank, part.number), part)
        if other is not part:
            raise TimelineError(
                f"{other.path} and {part.path} are both of rank {part.rank}; give the files of "
                "one job"
            )


def _joined(parts: list[_Part]) -> RankTimeline:
    last = parts[-1]
    timeline = RankTimeline(last.rank, last.job[0], str(last.identity.get("host", "?")))
    offset_ns: float = 0.0
    for part in parts:
        timeline.paths.append(part.path)
        if part.is_cut:
            timeline.notes.append(f"{part.path} was cut in the middle of an event")
        for event in part.events:
            args = event.get("args") or {}
            if event.get("name") == "hvd_keras_memcpy":
                timeline.memcpy = float(args.get("bytes_per_second", 0))
            elif event.get("name") == "hvd_keras_dropped":
                timeline.dropped = int(args.get("records", 0))
            elif event.get("name") == "hvd_keras_clock":
                offset_ns = float(args.get("offset_ns", 0))
                error = float(args.get("error_ns", -1))
                timeline.clock_error_us = None if error < 0 else error / 1e3
    first_number = parts[0].number
    if first_number > 1:
        timeline.notes.append(
            f"rank {last.rank}: the first {first_number - 1} parts of its timeline are gone; "
            "HVD_TIMELINE_MAX_MB sets how much is kept"
        )
    for part in parts:
        for event in part.events:
            if event.get("ph") != "M":
                event["ts"] = float(event["ts"]) + offset_ns / 1e3
            timeline.events.append(event)
    return timeline
