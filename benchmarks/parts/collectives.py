"""Allreduce from 4 B to 256 MiB: each way in, peers, and the memcpy that none can beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import protocol
from benchmarks.figures import interleave
from benchmarks.programs import ENGINE, OURS
from benchmarks.runs import Runs

if TYPE_CHECKING:
    from benchmarks.suite import Suite

BYTES_TABLE = [4, 64, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
QUICK_BYTES = [64, 64 << 10, 1 << 20, 64 << 20]
HALVES = ["float16", "bfloat16"]
HALF_BYTES = [64 << 20]  # of a float32 tensor of as many elements, of which half travel


def plan(nbytes: int, quick: bool) -> dict[str, Any]:
    """How often to measure a size, and how many allreduces to time at once."""
    if nbytes <= 64 << 10:
        rounds, repeat = 40, 20
    elif nbytes <= 1 << 20:
        rounds, repeat = 30, 10
    elif nbytes <= 64 << 20:
        rounds, repeat = 10, 4
    else:
        rounds, repeat = 4, 2
    return {
        "dtype": "float32",
        "bytes": nbytes,
        "rounds": max(3, rounds // 3) if quick else rounds,
        "repeat": repeat,
    }


def make_job(sizes: list[int], quick: bool = False, halves: bool = True) -> dict:
    tasks = [plan(nbytes, quick) for nbytes in sizes]
    if halves:
        for dtype in HALVES:
            tasks += [plan(n, quick) | {"dtype": dtype, "bytes": n // 2} for n in HALF_BYTES]
    return {"part": "collectives", "tasks": tasks}


# In the ranks.


def measure(backend: Any, job: dict) -> list[dict]:
    series = []
    for task in job["tasks"]:
        if task["dtype"] in backend.dtypes:
            series += _measure_task(backend, task)
    return series


def _measure_task(backend: Any, task: dict) -> list[dict]:
    repeat = task["repeat"]
    functions = {"memcpy": backend.memcpy([task["bytes"]], repeat)}
    functions |= backend.allreduce(task["bytes"], task["dtype"], repeat)
    times = interleave(functions, task["rounds"], backend.barrier, warm_up=2)
    key = {"what": "allreduce", "dtype": task["dtype"], "bytes": task["bytes"]}
    series = []
    for name, seconds in times.items():
        if name.endswith(", one"):
            series.append(protocol.entry(seconds, variant=name, **key))
            short = name.removesuffix(", one")
            pairs = zip(seconds, times[short + ", chain"], strict=True)
            slopes = [(chain - one) / repeat for one, chain in pairs]
            series.append(protocol.entry(slopes, variant=short, **key))
        elif not name.endswith(", chain"):
            series.append(protocol.entry([s / repeat for s in seconds], variant=name, **key))
    return series


# In the suite.


def native_command(job: dict, prefix: str) -> list[str]:
    """The command line of engine_alone for this job."""
    from benchmarks import native

    words = [
        f"allreduce:{task['dtype']}:{task['bytes']}:{task['rounds']}:{task['repeat']}"
        for task in job["tasks"]
    ]
    return [str(native.build("engine_alone")), prefix, *words]


def run(suite: Suite) -> None:
    sizes = QUICK_BYTES if suite.small else BYTES_TABLE
    job = make_job(sizes, suite.small)
    own = [suite.engine_alone(native_command), suite.ours()]
    for ranks in suite.rank_counts([2, 1, 4]):
        peers = suite.peers("collectives") if ranks == 2 else []
        runs = suite.run_in_turns(own + peers, ranks, job, rounds=3 if ranks == 2 else 1)
        suite.add_runs("collectives", runs)
        suite.add_table(f"Allreduce of float32, {ranks} ranks: microseconds", own_rows(runs, sizes))
        suite.add_table(f"Allreduce of float16 and bfloat16, {ranks} ranks", half_rows(runs))
        title = f"Allreduce of float32, {ranks} ranks: peers, microseconds; times hvd_keras's"
        suite.add_table(title, peer_rows(runs, sizes) if peers else [], runs.absent)
        if ranks > 1:
            suite.add_plot(f"allreduce-{ranks}", lambda path, runs=runs: plot(runs, sizes, path))


def series_key(variant: str, nbytes: int, dtype: str = "float32") -> dict:
    return {"what": "allreduce", "variant": variant, "dtype": dtype, "bytes": nbytes}


def size_name(nbytes: int) -> str:
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def own_rows(runs: Runs, sizes: list[int]) -> list[dict[str, str]]:
    """A row for each size: each way in, and what share of memcpy's rate it reaches."""
    columns = [(ENGINE, "engine"), (ENGINE, "call")]
    columns += [(OURS, v) for v in ("tf.function", "tf.function, one", "jit", "jit, one", "eager")]
    rows = []
    for nbytes in sizes:
        row = {"size": size_name(nbytes)}
        for program, variant in columns:
            name = f"engine alone, {variant}" if program == ENGINE else variant
            name = name.replace("alone, engine", "alone")
            summary = runs.summary(program, **series_key(variant, nbytes))
            row[name] = summary.text(1e6) if summary else "-"
        memcpy = runs.summary(ENGINE, **series_key("memcpy", nbytes))
        row["memcpy by all"] = memcpy.text(1e6) if memcpy else "-"
        for program, variant, name in (
            (ENGINE, "engine", "engine"),
            (OURS, "tf.function", "tf.f."),
        ):
            share = runs.paired_ratio(
                program, series_key("memcpy", nbytes), series_key(variant, nbytes)
            )
            row[f"memcpy / {name}"] = share.percent() if share else "-"
        rows.append(row)
    return rows


def half_rows(runs: Runs) -> list[dict[str, str]]:
    rows = []
    for dtype in HALVES:
        for nbytes in HALF_BYTES:
            row = {"type": dtype, "elements": f"{nbytes // 4:,}"}
            for program, variant in ((ENGINE, "engine"), (OURS, "tf.function")):
                name = program if program == ENGINE else variant
                half, full = series_key(variant, nbytes // 2, dtype), series_key(variant, nbytes)
                summary = runs.summary(program, **half)
                rate = runs.ratio((program, full), (program, half))
                row[f"{name}, us"] = summary.text(1e6) if summary else "-"
                row[f"{name}: elements/s against float32"] = rate.percent() if rate else "-"
            rows.append(row)
    return rows


def best_peer_variant(runs: Runs, program: str, nbytes: int) -> str | None:
    """The fastest of what a peer has measured for this size."""
    found = {
        key["variant"]: runs.summary(program, **key)
        for name, key in runs.all_keys()
        if name == program and key == series_key(str(key["variant"]), nbytes)
    }
    found.pop("memcpy", None)
    medians = {variant: summary.median for variant, summary in found.items() if summary}
    return min(medians, key=medians.__getitem__) if medians else None


def peer_rows(runs: Runs, sizes: list[int]) -> list[dict[str, str]]:
    """Each peer's best time, and how many times faster ours is: engine to host, graph to graph."""
    rows = []
    peers = [name for name in runs.results if name not in (OURS, ENGINE)]
    for nbytes in sizes:
        row = {"size": size_name(nbytes)}
        for peer in peers:
            variant = best_peer_variant(runs, peer, nbytes)
            summary = variant and runs.summary(peer, **series_key(variant, nbytes))
            if not variant or not summary:
                row[peer] = "-"
                continue
            on_host = variant == "host"
            ours = (
                (ENGINE, series_key("engine", nbytes))
                if on_host
                else (OURS, series_key("tf.function", nbytes))
            )
            factor = runs.ratio((peer, series_key(variant, nbytes)), ours)
            row[peer] = summary.text(1e6) + (f"; x {factor.text()}" if factor else "")
        rows.append(row)
    return rows


def plot(runs: Runs, sizes: list[int], path: str) -> None:
    from benchmarks import plots

    lines: dict[str, list[tuple[float, float]]] = {}
    for program in runs.results:
        for variant in ("engine", "tf.function", "jit", "eager", "host", "memcpy"):
            if variant == "memcpy" and program != ENGINE:
                continue
            points = [
                (float(nbytes), nbytes / summary.median / 1e9)
                for nbytes in sizes
                if (summary := runs.summary(program, **series_key(variant, nbytes)))
            ]
            if points:
                alone = variant in ("engine", "host")
                label = program if alone else f"{program}, {variant}"
                lines["memcpy by all at once" if variant == "memcpy" else label] = points
    title = f"Allreduce of float32, {runs.ranks} ranks"
    plots.lines(lines, path, title, "bytes", "GB/s (bytes / time)")
