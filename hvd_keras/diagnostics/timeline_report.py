"""A page of what timelines say, for a browser; it needs no network."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from hvd_keras.diagnostics.timeline_analysis import Analysis, Cost
from hvd_keras.diagnostics.timeline_files import RankTimeline, TimelineError
from hvd_keras.diagnostics.timeline_warnings import warnings_of

__all__ = ["make_page"]

# More points than a plot is wide show nothing more.
_POINTS = 1500
_BUCKETS = 24  # in the plot of bandwidths
_NAME = 48  # characters of a collective's name

_COMPUTE, _HIDDEN, _EXPOSED = "#4c78a8", "#54a24b", "#e45756"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p.about { color: #666; margin: .2rem 0 .6rem; }
ul.warnings { background: #fff6e0; border-left: 4px solid #e8a33d; padding: .8rem 1rem .8rem 2rem; }
p.fine { background: #eaf6ea; border-left: 4px solid #54a24b; padding: .8rem 1rem; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; word-break: break-all; }
"""


def make_page(analysis: Analysis, timelines: Sequence[RankTimeline]) -> str:
    """Returns the page as HTML, with the library that draws it inside.

    Raises:
        TimelineError: plotly is not installed, or nothing has happened in these timelines.
    """
    try:
        from plotly import offline
    except ImportError as error:
        raise TimelineError(
            "the report is drawn with plotly, which is not installed: pip install plotly "
            "(or hvd_keras[report])"
        ) from error
    if not analysis.costs and not analysis.has_steps:
        raise TimelineError(
            "there is neither a step nor a collective in these timelines; was the job ended "
            "before it began to train?"
        )
    plots: list[tuple[str, str, Callable[[Analysis], Any] | None]] = [
        (
            "Step time over the run",
            "Each line is a rank. A step is what lies between on_train_batch_begin and "
            "on_train_batch_end.",
            _step_times if analysis.has_steps else None,
        ),
        (
            "Where the time goes",
            "Of each rank's steps, but the first. Exposed is the time in which it waits for "
            "collectives and does nothing else; hidden, in which they are under way while it "
            "computes.",
            _shares,
        ),
        (
            "Who comes late",
            "How long after the first rank each one calls the same collective: the median of the "
            "steps.",
            _lateness if len(analysis.ranks) > 1 else None,
        ),
        (
            "Bandwidth of the allreduces",
            "Bytes of a rank's tensors, by the time from the moment when all ranks have called "
            "until the result is there. The line is what memcpy reached on these machines.",
            _bandwidths if any(map(_is_bucket, analysis.costs)) else None,
        ),
    ]
    sections = [
        f"<h2>{title}</h2>\n<p class='about'>{about}</p>\n{_drawn(plot(analysis))}"
        for title, about, plot in plots
        if plot is not None
    ]
    ranks = f"{len(analysis.ranks)} of {analysis.size}"
    files = ", ".join(html.escape(str(path)) for t in timelines for path in t.paths)
    return "\n".join(
        [
            "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>",
            "<title>hvd_keras timeline</title>",
            "<link rel='icon' href='data:,'>",  # browsers would ask for one
            f"<style>{_STYLE}</style>",
            f"<script>{offline.get_plotlyjs()}</script></head><body>",
            f"<h1>hvd_keras timeline: {ranks} ranks</h1>\n<p class='about'>{files}</p>",
            _summary(analysis),
            _warnings(warnings_of(analysis, timelines)),
            *sections,
            "<h2>The most expensive collectives</h2>",
            "<p class='about'>By the time from a call to its end, of one rank, over all its calls. "
            "The other times are those of one call.</p>",
            _table(analysis.top),
            "</body></html>\n",
        ]
    )


def _drawn(figure: Any) -> str:
    figure.update_layout(
        template="plotly_white", height=340, margin={"l": 60, "r": 20, "t": 20, "b": 50}
    )
    return str(
        figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
    )


def _summary(analysis: Analysis) -> str:
    if not analysis.has_steps:
        return ""
    total = sum(share.total for share in analysis.shares)
    steps = sum(share.steps for share in analysis.shares)
    durations = [duration for some in analysis.step_times.values() for _, duration in some]
    shares = [
        (name, sum(getattr(share, name) for share in analysis.shares) / total if total else 0.0)
        for name in ("compute", "exposed", "hidden")
    ]
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares)
    return (
        f"<p>{steps // max(len(analysis.ranks), 1)} steps of {1e3 * median(durations):.2f} ms "
        f"(median). Of their time: {text.replace('exposed', 'exposed communication')} (within "
        "compute).</p>"
    )


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return "<p class='fine'>Nothing here asks for attention.</p>"
    items = "\n".join(f"<li>{html.escape(warning)}</li>" for warning in warnings)
    return f"<ul class='warnings'>\n{items}\n</ul>"


def _step_times(analysis: Analysis) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for rank, steps in analysis.step_times.items():
        thinned = _thinned(steps)
        figure.add_scatter(
            x=[begin for begin, _ in thinned],
            y=[1e3 * duration for _, duration in thinned],
            name=f"rank {rank}",
            mode="lines+markers" if len(thinned) < 60 else "lines",
        )
    figure.update_layout(xaxis_title="seconds since the first step", yaxis_title="ms")
    # The first step, in which functions are traced, would make all others a line at the bottom.
    durations = sorted(
        1e3 * duration for some in analysis.step_times.values() for _, duration in some
    )
    if len(durations) > 20:
        figure.update_yaxes(range=[0, 1.15 * durations[int(0.98 * len(durations))]])
    return figure


def _thinned(steps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The median of each few steps, where there are many."""
    width = -(-len(steps) // _POINTS)
    if width <= 1:
        return steps
    groups = [steps[i : i + width] for i in range(0, len(steps), width)]
    return [(group[0][0], median(duration for _, duration in group)) for group in groups]


def _shares(analysis: Analysis) -> Any:
    import plotly.graph_objects as go

    names = [f"rank {share.rank}" for share in analysis.shares]
    parts = {
        "compute alone": [max(s.compute - s.hidden, 0.0) for s in analysis.shares],
        "compute, communication hidden behind it": [
            min(s.hidden, s.compute) for s in analysis.shares
        ],
        "exposed communication": [s.exposed for s in analysis.shares],
    }
    figure = go.Figure()
    for (name, values), color in zip(parts.items(), (_COMPUTE, _HIDDEN, _EXPOSED), strict=True):
        percent = [
            100 * value / share.total if share.total else 0.0
            for value, share in zip(values, analysis.shares, strict=True)
        ]
        figure.add_bar(x=percent, y=names, name=name, orientation="h", marker_color=color)
    legend = {"orientation": "h", "y": 1.15, "traceorder": "normal"}
    figure.update_layout(barmode="stack", xaxis_title="% of the time", legend=legend)
    figure.update_yaxes(autorange="reversed")
    return figure


def _lateness(analysis: Analysis) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_bar(
        x=[f"rank {share.rank}" for share in analysis.shares],
        y=[1e3 * share.late for share in analysis.shares],
        text=[f"last in {share.last_in:.0%}" for share in analysis.shares],
        marker_color=_EXPOSED,
    )
    figure.update_layout(yaxis_title="ms after the first rank")
    return figure


def _is_bucket(cost: Cost) -> bool:
    return cost.kind in ("ALLREDUCE", "REDUCESCATTER") and cost.bytes > 0 and cost.executed > 0


def _bandwidths(analysis: Analysis) -> Any:
    import plotly.graph_objects as go

    costs = sorted(filter(_is_bucket, analysis.costs), key=lambda cost: -cost.bytes)[:_BUCKETS]
    figure = go.Figure()
    figure.add_bar(
        x=[_short(cost.name) for cost in costs],
        y=[cost.bandwidth / 1e9 for cost in costs],
        text=[_bytes(cost.bytes) for cost in costs],
        marker_color=_COMPUTE,
    )
    if analysis.memcpy:
        figure.add_hline(
            y=analysis.memcpy / 1e9,
            line_dash="dash",
            annotation_text=f"memcpy {analysis.memcpy / 1e9:.1f} GB/s",
        )
        figure.update_yaxes(range=[0, 1.15 * max(analysis.memcpy / 1e9, *figure.data[0].y)])
    figure.update_layout(yaxis_title="GB/s")
    return figure


def _table(costs: Sequence[Cost]) -> str:
    titles = (
        "collective",
        "kind",
        "calls",
        "bytes",
        "total ms",
        "wait for ranks ms",
        "queue ms",
        "execution ms",
        "GB/s",
        "last rank",
    )
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = []
    for cost in costs:
        kind = f"{cost.transport} {cost.kind}".strip()
        cells = (
            html.escape(cost.name),
            kind,
            f"{cost.calls:,}",
            _bytes(cost.bytes),
            f"{1e3 * cost.total:.1f}",
            f"{1e3 * cost.waited:.3f}",
            f"{1e3 * cost.queued:.3f}",
            f"{1e3 * cost.executed:.3f}",
            f"{cost.bandwidth / 1e9:.2f}",
            f"{cost.last_rank} ({cost.last_share:.0%})" if cost.last_rank >= 0 else "",
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "</tbody></table>"
    )


def _short(name: str) -> str:
    return name if len(name) <= _NAME else "..." + name[-(_NAME - 3) :]


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
