"""What the programs of the suite say: every rank writes one file of JSON.

    {"rank": 0, "size": 2, "versions": {"tensorflow": "2.21.0"},
     "series": [{"key": {"what": "allreduce", "bytes": 64}, "values": [1.2e-05, 1.1e-05]}]}

All figures are costs (seconds, bytes), and the i-th of a series was measured by all ranks at the
same time. So what counts is the largest of the ranks' i-th figures: the slowest rank's time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Key = tuple[tuple[str, object], ...]


class ProtocolError(Exception):
    """What a program wrote is not what it should have; the message says what is wrong."""


@dataclass
class Result:
    """What the ranks of one program have measured together."""

    versions: dict[str, str] = field(default_factory=dict)
    series: dict[Key, list[float]] = field(default_factory=dict)


def make_key(parts: Mapping[str, object]) -> Key:
    return tuple(sorted(parts.items()))


def entry(values: Sequence[float], **key: object) -> dict:
    """One series, as ``write`` takes it."""
    return {"key": key, "values": [float(value) for value in values]}


def rank_file(prefix: str, rank: int) -> Path:
    return Path(f"{prefix}.{rank}.json")


def write(
    prefix: str, rank: int, size: int, versions: Mapping[str, str], series: Sequence[dict]
) -> None:
    """Writes the file of one rank."""
    content = {"rank": rank, "size": size, "versions": dict(versions), "series": list(series)}
    rank_file(prefix, rank).write_text(json.dumps(content))


def read(prefix: str, size: int) -> Result:
    """Reads the files of all ranks and takes the largest of their figures.

    Raises:
        ProtocolError: a file is missing or cannot be read, or the ranks have measured different
            things.
    """
    contents = [_load(rank_file(prefix, rank), rank, size) for rank in range(size)]
    merged = Result(versions=contents[0].get("versions", {}))
    series_by_rank = [_series(content, rank) for rank, content in enumerate(contents)]
    for rank, series in enumerate(series_by_rank):
        if series.keys() != series_by_rank[0].keys():
            odd = sorted(series.keys() ^ series_by_rank[0].keys())
            raise ProtocolError(f"ranks 0 and {rank} have not measured the same: {odd[0]}")
    for key in series_by_rank[0]:
        lists = [series[key] for series in series_by_rank]
        lengths = {len(values) for values in lists}
        if len(lengths) != 1 or 0 in lengths:
            raise ProtocolError(f"{key}: the ranks have {sorted(lengths)} figures")
        merged.series[key] = [max(figures) for figures in zip(*lists, strict=True)]
    return merged


def _load(path: Path, rank: int, size: int) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ProtocolError(f"rank {rank} of {size} has left no figures: {error}") from None
    if content.get("size") != size or content.get("rank") != rank:
        raise ProtocolError(
            f"expected the figures of rank {rank} of {size}, got those of rank "
            f"{content.get('rank')} of {content.get('size')}: do launcher and library belong "
            "together?"
        )
    return content


def _series(content: dict, rank: int) -> dict[Key, list[float]]:
    try:
        return {make_key(one["key"]): list(one["values"]) for one in content["series"]}
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"rank {rank}'s series cannot be read: {error!r}") from None
