"""Runs: what the programs have measured in all rounds, and ratios between them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.figures import Summary
from benchmarks.protocol import Key, Result, make_key


@dataclass
class Runs:
    """Programs that took turns, each with one result for each round, and those that are absent."""

    ranks: int
    results: dict[str, list[Result]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # and why

    def add(self, program: str, result: Result) -> None:
        self.results.setdefault(program, []).append(result)

    def give_up(self, program: str, reason: str) -> None:
        """A program that has failed once is out: its figures would be of other rounds."""
        self.results.pop(program, None)
        self.absent[program] = reason

    def values(self, program: str, **key: object) -> list[float]:
        """The figures of all rounds; empty where it has not measured that."""
        wanted = make_key(key)
        results = self.results.get(program, ())
        return [value for result in results for value in result.series.get(wanted, ())]

    def summary(self, program: str, **key: object) -> Summary | None:
        values = self.values(program, **key)
        return Summary.of(values) if values else None

    def medians(self, program: str, **key: object) -> list[float]:
        """One figure for each round."""
        wanted = make_key(key)
        series = [result.series.get(wanted) for result in self.results.get(program, ())]
        return [statistics.median(values) for values in series if values]

    def ratio(self, numerator: tuple[str, dict], denominator: tuple[str, dict]) -> Summary | None:
        """Of the medians of each round; None where one of the two was not measured."""
        above = self.medians(numerator[0], **numerator[1])
        below = self.medians(denominator[0], **denominator[1])
        if not above or len(above) != len(below):
            return None
        return Summary.of([a / b for a, b in zip(above, below, strict=True)])

    def paired_ratio(self, program: str, numerator: dict, denominator: dict) -> Summary | None:
        """Of figures that one program has measured turn by turn."""
        above, below = self.values(program, **numerator), self.values(program, **denominator)
        if not above or len(above) != len(below):
            return None
        return Summary.of([a / b for a, b in zip(above, below, strict=True)])

    def all_keys(self) -> Iterator[tuple[str, dict]]:
        """Each program with the key of each of its series."""
        for program, results in self.results.items():
            seen: dict[Key, None] = {}
            for result in results:
                seen.update(dict.fromkeys(result.series))
            for key in seen:
                yield program, dict(key)

    def as_json(self) -> dict:
        series = []
        for program, key in self.all_keys():
            summary = self.summary(program, **key)
            assert summary is not None
            rounds = self.medians(program, **key)
            series.append({"program": program, **key, **summary.as_json(), "rounds": rounds})
        versions = {name: results[0].versions for name, results in self.results.items()}
        return {"ranks": self.ranks, "absent": self.absent, "versions": versions, "series": series}
