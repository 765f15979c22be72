"""What a timeline costs: the same training with one and without, in turns, in one run.

    hvdrun -np 2 python -m benchmarks.timeline_overhead --rounds 20

A round is some steps of ``fit`` without a timeline, then as many with one; every other round begins
with the latter. Neighbours in time are compared, so that what else the machine does at the moment
strikes both alike. Then: how long the calling thread is busy with one record, and what the writer's
thread uses while nothing happens. Rank 0 prints, as a line of JSON if asked to.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import hvd_keras as hvd
from benchmarks import models
from hvd_keras import _library

BURST = 4096  # records; the timeline has room for four times as many
BURSTS = 10
PAUSE = 0.5  # longer than it takes to write a burst
IDLE_SECONDS = 3.0


class StepTimes(keras.callbacks.Callback):
    """How long each step took, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.times.append(time.perf_counter() - self._begin)


def make_model(training: models.Training) -> keras.Model:
    model = training.build(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def compare(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """The medians of a step's time, of its processor time, and of neighbours' differences."""
    training = models.TRAININGS[args.model]
    model = make_model(training)
    x, y = (np.concatenate([part] * args.steps) for part in training.data(hvd.rank()))

    def run(with_timeline: bool) -> tuple[float, float]:
        if with_timeline:
            hvd.start_timeline(path)
        time.sleep(PAUSE)  # it begins with measuring memcpy
        hvd.barrier("benchmark.round")
        steps = StepTimes()
        busy = time.process_time()
        model.fit(x, y, batch_size=training.batch, shuffle=False, verbose=0, callbacks=[steps])
        if with_timeline:
            hvd.stop_timeline()
        # A busy machine changes the one a lot, and the other little.
        return statistics.median(steps.times), (time.process_time() - busy) / len(steps.times)

    run(True)
    run(False)
    pairs = []
    for number in range(args.rounds):
        first = run(number % 2 == 1)
        second = run(number % 2 == 0)
        pairs.append((first, second) if number % 2 == 0 else (second, first))
    result = {}
    for index, what in enumerate(("step", "cpu")):
        off = [without[index] for without, _ in pairs]
        on = [with_it[index] for _, with_it in pairs]
        ratios = sorted(b / a - 1 for a, b in zip(off, on, strict=True))
        quarter = len(ratios) // 4
        result |= {
            f"{what}_ms_without": 1e3 * statistics.median(off),
            f"{what}_ms_with": 1e3 * statistics.median(on),
            f"{what}_overhead_percent": 100 * statistics.median(ratios),
            f"{what}_overhead_percent_lower": 100 * ratios[quarter],  # quartiles
            f"{what}_overhead_percent_upper": 100 * ratios[-1 - quarter],
        }
    return result


def record_cost(path: Path) -> dict[str, float]:
    """Nanoseconds of the calling thread for one record, with a timeline and without."""
    core = _library.core
    without = [core.time_timeline_records(BURST) for _ in range(BURSTS)]
    hvd.start_timeline(path)
    with_timeline = []
    for _ in range(BURSTS):
        time.sleep(PAUSE)
        with_timeline.append(core.time_timeline_records(BURST))
    hvd.stop_timeline()
    return {
        "record_ns": statistics.median(with_timeline),
        "record_ns_worst_burst": max(with_timeline),
        "record_ns_off": statistics.median(without),
        "records_dropped": hvd.stats()["timeline_dropped"],
    }


def idle_cost(path: Path) -> dict[str, float]:
    """Processor time of this process while a timeline has nothing to write."""

    def used() -> float:
        hvd.barrier("benchmark.idle")
        time.sleep(1)
        begin = time.process_time()
        time.sleep(IDLE_SECONDS)
        return 1e3 * (time.process_time() - begin) / IDLE_SECONDS

    without = used()
    hvd.start_timeline(path)
    with_timeline = used()
    hvd.stop_timeline()
    return {"idle_ms_per_s_without": without, "idle_ms_per_s_with": with_timeline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=models.TRAININGS, default="MLP")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40, help="in each half of a round")
    parser.add_argument("--folder", type=Path, help="where the timelines lie while it runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    hvd.init()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "timeline.json"
        found: dict[str, float] = {"ranks": hvd.size(), "cores": len(os.sched_getaffinity(0))}
        found |= compare(args, path)
        hvd.barrier("benchmark.records")
        if hvd.rank() == 0:
            found |= record_cost(path)
        hvd.barrier("benchmark.idle.begin")
        found |= idle_cost(path)
    if hvd.rank() == 0:
        if args.json:
            print(json.dumps({"model": args.model, **found}))
        else:
            for name, value in found.items():
                print(f"{name:34s} {value:10.3f}")


if __name__ == "__main__":
    main()
