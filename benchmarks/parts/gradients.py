"""The gradients of ResNet-50 and BERT-base, averaged as one set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import models, protocol
from benchmarks.figures import interleave
from benchmarks.programs import ENGINE, OURS
from benchmarks.runs import Runs

if TYPE_CHECKING:
    from benchmarks.suite import Suite

ROUNDS = {"ResNet-50": 8, "BERT-base": 4}


def make_job(quick: bool = False) -> dict:
    names = ["ResNet-50"] if quick else list(models.GRADIENT_SETS)
    tasks = [{"what": name, "rounds": ROUNDS[name]} for name in names]
    return {"part": "gradients", "tasks": tasks}


# In the ranks.


def measure(backend: Any, job: dict) -> list[dict]:
    series = []
    for task in job["tasks"]:
        shapes = models.GRADIENT_SETS[task["what"]]()
        sizes = models.nbytes(shapes)
        functions = {"memcpy": backend.memcpy(sizes, 1)} | backend.gradient_set(shapes)
        for variant, seconds in interleave(functions, task["rounds"], backend.barrier).items():
            key = series_key(task["what"], variant, sum(sizes))
            series.append(protocol.entry(seconds, **key))
    return series


def series_key(what: str, variant: str, nbytes: int) -> dict:
    return {"what": what, "variant": variant, "dtype": "float32", "bytes": nbytes}


# In the suite.


def native_command(job: dict, prefix: str) -> list[str]:
    """The command line of engine_alone for this job: each set is one request."""
    from benchmarks import native

    words = []
    for task in job["tasks"]:
        sizes = ",".join(map(str, models.nbytes(models.GRADIENT_SETS[task["what"]]())))
        words.append(f"{task['what']}:float32:{sizes}:{task['rounds']}:1")
    return [str(native.build("engine_alone")), prefix, *words]


def run(suite: Suite) -> None:
    job = make_job(suite.small)
    own = [suite.engine_alone(native_command), suite.ours()]
    for ranks in suite.rank_counts([2, 1]):
        programs = own + (suite.peers("gradients") if ranks == 2 else [])
        runs = suite.run_in_turns(programs, ranks, job, rounds=3 if ranks == 2 else 1)
        suite.add_runs("gradients", runs)
        suite.add_table(f"Gradient sets, {ranks} ranks", rows(runs, job), runs.absent)
        if ranks == 2:
            suite.add_plot("gradients", lambda path, runs=runs: plot(runs, job, path))


def _variants(runs: Runs, what: str) -> list[tuple[str, dict]]:
    """Each program's series of this set but memcpy, in the order in which they were measured."""
    found = [(p, key) for p, key in runs.all_keys() if key["what"] == what]
    return [(p, key) for p, key in found if key["variant"] not in ("memcpy", "call")]


def rows(runs: Runs, job: dict) -> list[dict[str, str]]:
    """A row for each program and variant: time, share of memcpy, and times ours in the graph."""
    made = []
    for task in job["tasks"]:
        what = task["what"]
        for program, key in _variants(runs, what):
            summary = runs.summary(program, **key)
            share = runs.paired_ratio(program, key | {"variant": "memcpy"}, key)
            factor = runs.ratio((program, key), (OURS, key | {"variant": "grouped"}))
            assert summary is not None
            made.append(
                {
                    "set": what,
                    "program": program,
                    "how": str(key["variant"]),
                    "ms": summary.text(1e3),
                    "GB/s": f"{key['bytes'] / summary.median / 1e9:.2f}",
                    "memcpy by all / this": share.percent() if share else "-",
                    "this / hvd_keras grouped": factor.text() if factor else "-",
                }
            )
    return made


def plot(runs: Runs, job: dict, path: str) -> None:
    from benchmarks import plots

    values: dict[str, dict[str, tuple[float, float, float]]] = {}
    for task in job["tasks"]:
        for program, key in _variants(runs, task["what"]):
            summary = runs.summary(program, **key)
            memcpy = runs.summary(program, **(key | {"variant": "memcpy"}))
            if summary and memcpy:
                label = program if program == ENGINE else f"{program}, {key['variant']}"
                times = (summary.median, summary.low, summary.high)
                relative = tuple(seconds / memcpy.median for seconds in times)
                values.setdefault(task["what"], {})[label] = relative  # type: ignore[assignment]
    title = f"Averaging a set of gradients, {runs.ranks} ranks"
    plots.bars(values, path, title, "time / time of simultaneous memcpy", line=1.0)
