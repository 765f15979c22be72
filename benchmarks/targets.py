"""What the project wants to reach on two cores with two ranks, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks import models
from benchmarks.figures import Summary
from benchmarks.parts import collectives, gradients, startup, training
from benchmarks.peers import PEERS
from benchmarks.programs import ENGINE, OURS
from benchmarks.runs import Runs

MPIS = [peer.name for peer in PEERS if peer.backend == "mpi"]
HOROVODS = [peer.name for peer in PEERS if peer.backend == "horovod"]
TRAINERS = [peer.name for peer in PEERS if "training" in peer.parts]
LARGE = 64 << 20


@dataclass(frozen=True)
class Target:
    """A figure and its limit. ``unit`` is what one is printed as: "%", "x", or of a scale."""

    what: str
    measured: Summary | None
    limit: float
    at_least: bool = True
    unit: str = "%"
    scale: float = 1.0

    @property
    def reached(self) -> bool | None:
        if self.measured is None:
            return None
        value = self.measured.median * self.scale
        return value >= self.limit if self.at_least else value <= self.limit

    def row(self) -> dict[str, str]:
        measured, limit = "-", f"{self.limit:g} {self.unit}"
        if self.unit == "%" and self.scale == 1.0:
            limit = f"{self.limit * 100:g} %"
            measured = self.measured.percent() if self.measured else "-"
        elif self.measured:
            measured = f"{self.measured.text(self.scale)} {self.unit}"
        return {
            "what": self.what,
            "target": f"{'at least' if self.at_least else 'at most'} {limit}",
            "measured": measured,
            "reached": {None: "not measured", True: "yes", False: "NO"}[self.reached],
        }


def make_targets(
    runs: Mapping[tuple[str, int], Runs], shared_cache: bool, launch: Summary | None
) -> list[Target]:
    """All targets, of what has been measured.

    Args:
        runs: by part and number of ranks.
        shared_cache: whether the machine was in regime A.
        launch: seconds that hvdrun takes longer than starting the processes by hand.
    """
    none = Runs(0)
    return [
        *_of_collectives(runs.get(("collectives", 2), none), shared_cache),
        *_of_gradients(runs.get(("gradients", 2), none)),
        *_of_training(runs.get(("training", 2), none), runs.get(("training", 1), none)),
        *_of_startup(runs, launch),
    ]


def _worst(ratios: Iterable[Summary | None]) -> Summary | None:
    """That of the best peer."""
    return min((r for r in ratios if r), key=lambda r: r.median, default=None)


def _times_faster(
    runs: Runs, peers: list[str], ours: tuple[str, str], nbytes: int
) -> Summary | None:
    """How many times the time of ours the best of the peers takes, each at its best."""
    program, variant = ours
    own = (program, collectives.series_key(variant, nbytes))
    theirs = [(peer, collectives.best_peer_variant(runs, peer, nbytes)) for peer in peers]
    return _worst(
        runs.ratio((peer, collectives.series_key(best, nbytes)), own)
        for peer, best in theirs
        if best
    )


def _of_collectives(runs: Runs, shared_cache: bool) -> list[Target]:
    key = collectives.series_key
    share = 0.9 if shared_cache else 0.62
    memcpy = key("memcpy", LARGE)
    engine = runs.paired_ratio(ENGINE, memcpy, key("engine", LARGE))
    graph = runs.paired_ratio(OURS, memcpy, key("tf.function", LARGE))
    in_graph, alone = (OURS, "tf.function"), (ENGINE, "engine")
    small = runs.summary(OURS, **key("tf.function", 64))
    small_engine = runs.summary(ENGINE, **key("engine", 64))
    faster = {
        (what, nbytes): _times_faster(runs, peers, ours, nbytes)
        for what, peers, ours, sizes in (
            ("Horovod", HOROVODS, in_graph, (64, LARGE)),
            ("MPI", MPIS, alone, (64 << 10, 1 << 20, LARGE)),
        )
        for nbytes in sizes
    }
    targets = [
        Target("64 MiB, engine alone: memcpy / allreduce", engine, share),
        Target("64 MiB, tf.function: memcpy / allreduce", graph, share - 0.05),
        Target("64 MiB: Horovod's best / tf.function", faster["Horovod", LARGE], 4, unit="x"),
        Target("64 MiB: best MPI / engine alone", faster["MPI", LARGE], 3, unit="x"),
        Target("64 KiB: best MPI / engine alone", faster["MPI", 64 << 10], 1, unit="x"),
        Target("1 MiB: best MPI / engine alone", faster["MPI", 1 << 20], 1, unit="x"),
        Target("64 B, tf.function", small, 30, False, "us", 1e6),
        Target("64 B, engine alone", small_engine, 5, False, "us", 1e6),
        Target("64 B: Horovod's best / tf.function", faster["Horovod", 64], 20, unit="x"),
    ]
    for dtype in collectives.HALVES:
        half, full = key("engine", LARGE // 2, dtype), key("engine", LARGE)
        rate = runs.ratio((ENGINE, full), (ENGINE, half))
        targets.append(Target(f"{dtype}, 16 Mi: elements/s against float32", rate, 1.0))
    return targets


def _of_gradients(runs: Runs) -> list[Target]:
    total = sum(models.nbytes(models.resnet50_shapes()))
    memcpy, grouped = (gradients.series_key("ResNet-50", v, total) for v in ("memcpy", "grouped"))
    share = runs.paired_ratio(OURS, memcpy, grouped)
    return [Target("ResNet-50's gradients, grouped: memcpy / this", share, 0.7)]


def _of_training(two: Runs, one: Runs) -> list[Target]:
    floors = {"MLP": 0.9, "CNN": 0.985}
    targets = [
        Target(
            f"fit, {name}, 2 ranks: with / without exchange",
            training.efficiency(two, OURS, name),
            f,
        )
        for name, f in floors.items()
    ]
    for name in models.TRAININGS:
        key = {"what": name, "variant": training.PARALLEL}
        best = _worst(two.ratio((peer, key), (OURS, key)) for peer in TRAINERS)
        targets.append(Target(f"fit, {name}: best peer's step / hvd_keras's", best, 1, unit="x"))
    for name in models.TRAININGS:
        share = training.efficiency(one, OURS, name)
        targets.append(Target(f"fit, {name}, 1 rank: with / without the wrapper", share, 0.99))
    return targets


def _of_startup(runs: Mapping[tuple[str, int], Runs], launch: Summary | None) -> list[Target]:
    two = runs.get(("startup", 2), Runs(0))
    rank = startup.RANK
    targets = [
        Target("hvd.init()", two.summary(rank, what="first init"), 50, False, "ms", 1e3),
        Target("hvdrun, more than by hand", launch, 0.3, False, "s"),
        Target("idle CPU", two.summary(rank, what="idle CPU"), 0.05, False, "%", 100.0),
    ]
    for (part, ranks), one in runs.items():
        if part == "startup":
            peak = one.summary(rank, what="memory", kind="peak")
            limit = startup.bound() / startup.MIB
            what = f"memory of a rank, {ranks} ranks"
            targets.append(Target(what, peak, limit, False, "MiB", 1 / startup.MIB))
    return targets
