"""``fit`` with and without the exchange of gradients, in the same processes, epoch by epoch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks import models, protocol
from benchmarks.programs import OURS
from benchmarks.runs import Runs

if TYPE_CHECKING:
    from benchmarks.suite import Suite

PLAIN, PARALLEL = "without exchange", "with exchange"


def make_job(quick: bool = False, names: list[str] | None = None, epochs: int = 7) -> dict:
    names = names or list(models.TRAININGS)
    return {"part": "training", "models": names, "epochs": 4 if quick else epochs}


# In the ranks.


def measure(backend: Any, job: dict) -> list[dict]:
    series = []
    for name in job["models"]:
        times = _train(backend, models.TRAININGS[name], job["epochs"])
        series += [protocol.entry(t, what=name, variant=variant) for variant, t in times.items()]
    return series


def _train(backend: Any, training: models.Training, epochs: int) -> dict[str, list[float]]:
    """Seconds of a step in each epoch; what the first steps take to be traced is left out."""
    x, y = training.data(backend.rank)
    clock = _make_clock(backend.keras)
    fits = {}
    for variant, make in ((PLAIN, backend.plain_model), (PARALLEL, backend.parallel_model)):
        model = make(training.build)
        fits[variant] = (model, backend.dataset(x, y, training.steps, variant == PARALLEL))
    times: dict[str, list[float]] = {variant: [] for variant in fits}
    for epoch in range(-1, epochs):
        for variant, (model, data) in fits.items():
            backend.barrier()
            model.fit(data, epochs=1, verbose=0, callbacks=[clock])
            if epoch >= 0:
                times[variant].append(clock.seconds_of_a_step())
    return times


def _make_clock(keras: Any) -> Any:
    class StepClock(keras.callbacks.Callback):
        """The time from the end of an epoch's first step to that of its last."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

        def seconds_of_a_step(self) -> float:
            return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)

    return StepClock()


# In the suite.


def run(suite: Suite) -> None:
    job = make_job(suite.small)
    for ranks in suite.rank_counts([2, 1]):
        peers = suite.peers("training") if ranks == 2 else []
        rounds = 3 if ranks == 2 else 2
        runs = suite.run_in_turns([suite.ours(), *peers], ranks, job, rounds=rounds)
        suite.add_runs("training", runs)
        title = "wrapper overhead" if ranks == 1 else "scaling efficiency"
        suite.add_table(f"fit, {ranks} ranks: {title}", rows(runs, job), runs.absent)
        if ranks == 2:
            suite.add_plot("training", lambda path, runs=runs: plot(runs, job, path))


def efficiency(runs: Runs, program: str, name: str) -> Any:
    """Samples per second with exchange as a share of those without: a ratio for each epoch."""
    plain, parallel = ({"what": name, "variant": variant} for variant in (PLAIN, PARALLEL))
    return runs.paired_ratio(program, plain, parallel)


def rows(runs: Runs, job: dict) -> list[dict[str, str]]:
    made = []
    for name in job["models"]:
        for program in runs.results:
            key = {"what": name, "variant": PARALLEL}
            plain = runs.summary(program, what=name, variant=PLAIN)
            parallel = runs.summary(program, **key)
            share = efficiency(runs, program, name)
            factor = runs.ratio((program, key), (OURS, key))
            if not (plain and parallel and share):
                continue
            samples = runs.ranks * models.TRAININGS[name].batch / parallel.median
            made.append(
                {
                    "model": name,
                    "program": program,
                    "step without exchange, ms": plain.text(1e3),
                    "with, ms": parallel.text(1e3),
                    "samples/s": f"{samples:,.0f}",
                    "with / without, in samples/s": share.percent(),
                    "step / hvd_keras's": factor.text() if factor else "-",
                }
            )
    return made


def plot(runs: Runs, job: dict, path: str) -> None:
    from benchmarks import plots

    values: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name in job["models"]:
        for program in runs.results:
            share = efficiency(runs, program, name)
            if share:
                values.setdefault(name, {})[program] = (share.median, share.low, share.high)
    title = f"fit, {runs.ranks} ranks: samples/s with exchange / without"
    plots.bars(values, path, title, "share", line=1.0)
