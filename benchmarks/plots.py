"""Plots, where there is matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _figure(title: str, size: tuple[float, float] = (8.0, 5.0)) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=size)
    axes.set_title(title)
    return figure, axes


def _save(figure: Any, path: str | Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    path: str | Path,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """A line for each name, on logarithmic axes."""
    figure, axes = _figure(title)
    for number, (name, points) in enumerate(series.items()):
        style = "k--" if "memcpy" in name else "os^vD<>p*h"[number % 10] + "-"
        axes.loglog(*zip(*points, strict=True), style, label=name, markersize=4)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def bars(
    values: Mapping[str, Mapping[str, tuple[float, float, float]]],
    path: str | Path,
    title: str,
    y_label: str,
    line: float | None = None,
) -> None:
    """Groups of bars: by group and name the median and the quartiles around it.

    ``line`` is a height to mark: that of what the others are compared with.
    """
    names = list(dict.fromkeys(name for group in values.values() for name in group))
    width = 0.8 / max(1, len(names))
    figure, axes = _figure(title, (max(7.0, 1.2 * len(values) * len(names) * 0.6), 5.0))
    for number, name in enumerate(names):
        places, heights, errors = [], [], []
        for place, group in enumerate(values.values()):
            if name in group:
                median, low, high = group[name]
                places.append(place + number * width)
                heights.append(median)
                errors.append((max(0.0, median - low), max(0.0, high - median)))
        below, above = zip(*errors, strict=True)
        axes.bar(places, heights, width, yerr=[below, above], label=name, capsize=2)
    if line is not None:
        axes.axhline(line, color="black", linestyle="--", linewidth=1)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(values))], list(values))
    axes.set_ylabel(y_label)
    axes.legend(fontsize="small")
    _save(figure, path)
