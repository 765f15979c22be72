"""Figures: medians with quartiles, and rounds in which everything takes turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """A median, the quartiles around it, and of how many figures."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        if not values:
            raise ValueError("a summary of no figures")
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    def text(self, scale: float = 1.0, digits: int = 3) -> str:
        """'12.3 (11.9-12.8)'; with as many significant digits."""
        parts = [significant(part * scale, digits) for part in (self.median, self.low, self.high)]
        return f"{parts[0]} ({parts[1]}-{parts[2]})" if self.count > 1 else parts[0]

    def percent(self) -> str:
        """'93 % (91-94)'; a decimal more near 100 % and below 10 %."""
        digits = 1 if 0.9 < self.median < 1.1 or self.median < 0.1 else 0
        parts = [f"{part * 100:.{digits}f}" for part in (self.median, self.low, self.high)]
        return f"{parts[0]} % ({parts[1]}-{parts[2]})" if self.count > 1 else f"{parts[0]} %"

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high, "count": self.count}


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, and never in scientific notation."""
    if value == 0:
        return "0"
    before_point = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - before_point)}f}"


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Summary:
    """What is left of a machine's changes when figures of the same round are divided.

    Raises ValueError where there are not as many of the ones as of the others.
    """
    return Summary.of([a / b for a, b in zip(numerators, denominators, strict=True)])


def timed(function: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleave(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    before: Callable[[], object],
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Times all variants in each round, so that a machine which changes, changes for all of them.

    Args:
        variants: what to time, by name.
        rounds: how often.
        before: called before each of them: a barrier.
        warm_up: rounds before, whose times do not count.

    Returns:
        Seconds of each round, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warm_up + rounds):
        for name, function in variants.items():
            before()
            seconds = timed(function)
            if number >= warm_up:
                times[name].append(seconds)
    return times
