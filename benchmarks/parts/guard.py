"""The regression guard: a few ratios within one run, each with a floor far below what is usual.

Ratios of what takes turns on one machine hold on any machine, roughly: they fall when the library
gets slower, not when the machine is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import machine, models, protocol
from benchmarks.figures import Summary, interleave
from benchmarks.parts import collectives, gradients, training
from benchmarks.programs import ENGINE, OURS
from benchmarks.runs import Runs

if TYPE_CHECKING:
    from benchmarks.suite import Suite

RANKS = 2
SMALL, LARGE = 64, 64 << 20
CHAIN = 20
IDLE_SECONDS = 2.0
LOCAL, GLOBAL = "among one rank", "among all"


@dataclass(frozen=True)
class Check:
    """A ratio that may not fall below a floor; None where it could not be measured."""

    what: str
    ratio: Summary | None
    floor: float

    @property
    def holds(self) -> bool:
        return self.ratio is not None and self.ratio.median >= self.floor

    def row(self) -> dict[str, str]:
        return {
            "ratio": self.what,
            "measured": self.ratio.percent() if self.ratio else "-",
            "floor": f"{self.floor * 100:g} %",
            "": "" if self.holds else "BELOW" if self.ratio else "NOT MEASURED",
        }


def make_jobs() -> dict:
    sizes = [collectives.plan(nbytes, True) for nbytes in (SMALL, LARGE)]
    return {
        "part": "guard",
        "collectives": {"part": "collectives", "tasks": sizes},
        "gradients": gradients.make_job(quick=True),
        "training": training.make_job(names=["MLP"], epochs=6),
    }


# In the ranks.


def measure(backend: Any, job: dict) -> list[dict]:
    series = _measure_small(backend)
    series += collectives.measure(backend, {"tasks": job["collectives"]["tasks"][1:]})
    series += gradients.measure(backend, job["gradients"])
    series += training.measure(backend, job["training"])
    backend.barrier()
    return [*series, protocol.entry([idle_share(IDLE_SECONDS)], what="idle CPU")]


def _measure_small(backend: Any) -> list[dict]:
    """A small allreduce as part of a tf.function: with the others, and with this rank alone."""
    import tensorflow as tf

    hvd = backend.hvd
    alone = [hvd.add_process_set([rank]) for rank in range(backend.size)][backend.rank]
    x = tf.ones([SMALL // 4])

    def chain(name: str, members: Any, length: int) -> Any:
        @tf.function
        def run() -> tf.Tensor:
            y = x
            for i in range(length):
                y = hvd.allreduce(y, name=f"{name}.{length}.{i}", process_set=members)
            return y

        return run

    functions = {}
    for name, members in ((LOCAL, alone), (GLOBAL, hvd.global_process_set)):
        for length in (1, 1 + CHAIN):
            functions[f"{name} {length}"] = chain(name, members, length)
    times = interleave(functions, 30, backend.barrier, warm_up=3)
    series = []
    for name in (LOCAL, GLOBAL):
        pairs = zip(times[f"{name} 1"], times[f"{name} {1 + CHAIN}"], strict=True)
        slopes = [max(1e-9, (long - short) / CHAIN) for short, long in pairs]
        series.append(protocol.entry(slopes, what="small", variant=name))
    return series


def idle_share(seconds: float) -> float:
    """CPU time that all threads of this process take while it sleeps, per second."""
    time.sleep(0.3)
    before, begin = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return (time.process_time() - before) / (time.perf_counter() - begin)


# In the suite.


def native_command(job: dict, prefix: str) -> list[str]:
    return collectives.native_command(job["collectives"], prefix)


def run(suite: Suite) -> None:
    exchange = machine.probe()["exchange_seconds"]
    programs = [suite.engine_alone(native_command), suite.ours()]
    runs = suite.run_in_turns(programs, RANKS, make_jobs(), rounds=1)
    suite.add_runs("guard", runs)
    checks = make_checks(runs, exchange)
    suite.add_table("Regression guard, 2 ranks", [check.row() for check in checks], runs.absent)
    suite.failures += [check.what for check in checks if not check.holds]


def make_checks(runs: Runs, exchange_seconds: float) -> list[Check]:
    """The ratios; each is the larger the better."""
    series_key = collectives.series_key
    large = {"memcpy": series_key("memcpy", LARGE)}
    engine = runs.paired_ratio(ENGINE, large["memcpy"], series_key("engine", LARGE))
    graph = runs.paired_ratio(OURS, large["memcpy"], series_key("tf.function", LARGE))
    small = runs.summary(ENGINE, **series_key("engine", SMALL))
    exchange = Summary.of([exchange_seconds / small.median]) if small else None
    call = runs.ratio(
        (OURS, {"what": "small", "variant": LOCAL}), (OURS, {"what": "small", "variant": GLOBAL})
    )
    total = sum(models.nbytes(models.resnet50_shapes()))
    sets = [gradients.series_key("ResNet-50", variant, total) for variant in ("memcpy", "grouped")]
    idle = runs.summary(OURS, what="idle CPU")
    return [
        Check("64 MiB, engine alone: memcpy / allreduce", engine, 0.35),
        Check("64 MiB in a tf.function: memcpy / allreduce", graph, 0.3),
        Check("64 B, engine alone: exchange of 8 B / allreduce", exchange, 0.003),
        Check("64 B in a tf.function: one rank alone / both", call, 0.1),
        Check(
            "ResNet-50's gradients: memcpy / grouped allreduce", runs.paired_ratio(OURS, *sets), 0.3
        ),
        Check(
            "fit, MLP: samples/s with / without exchange",
            training.efficiency(runs, OURS, "MLP"),
            0.6,
        ),
        Check("idle: 1 - CPU share", Summary.of([1 - idle.median]) if idle else None, 0.98),
    ]
