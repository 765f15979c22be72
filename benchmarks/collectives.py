"""Times allreduce, side by side with the memcpy that it cannot beat.

    hvdrun -np 2 python benchmarks/collectives.py

Every figure is a median over many rounds, in which all variants take turns, so that a machine which
changes its speed changes it for all of them. `chain` is the cost of one more allreduce in a
tf.function, taken as the slope over a chain; `single` is a tf.function with one allreduce, whose
result is new memory. The share of memcpy is its time, by all ranks at once, divided by the
allreduce's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import hvd_keras as hvd

SIZES = [64, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
CHAIN = 20


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def chain(length: int) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        for i in range(length):
            x = hvd.allreduce(x, op=hvd.Average, name=f"chain.{length}.{i}")
        return x

    return run


def measure(nbytes: int, rounds: int, long: int) -> dict[str, float]:
    """Returns the medians, in seconds, for float32 tensors of ``nbytes``."""
    x = tf.random.uniform([nbytes // 4])
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    short_chain, long_chain = chain(1), chain(1 + long)
    variants: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(target, source),
        "single": lambda: short_chain(x),
        "long": lambda: long_chain(x),
    }
    for function in variants.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, function in variants.items():
            hvd.barrier()
            times[name].append(timed(function))
    medians = {name: statistics.median(values) for name, values in times.items()}
    slopes = [(b - a) / long for a, b in zip(times["single"], times["long"], strict=True)]
    medians["chain"] = statistics.median(slopes)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    options = parser.parse_args()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    rows = []
    for nbytes in SIZES:
        rounds = 400 if nbytes <= 1 << 20 else 40
        if options.quick:
            rounds //= 10
        medians = measure(nbytes, rounds, CHAIN if nbytes <= 1 << 20 else 4)
        rows.append({"bytes": nbytes, **medians})

    if hvd.rank() != 0:
        return
    print(f"allreduce of float32, {hvd.size()} ranks; times in microseconds")
    print(
        f"{'bytes':>10} {'memcpy':>10} {'chain':>10} {'single':>10} {'chain GB/s':>11} "
        f"{'chain/memcpy':>13} {'single/memcpy':>14}"
    )
    for row in rows:
        print(
            f"{row['bytes']:>10} {row['memcpy'] * 1e6:>10.1f} {row['chain'] * 1e6:>10.1f} "
            f"{row['single'] * 1e6:>10.1f} {row['bytes'] / row['chain'] / 1e9:>11.2f} "
            f"{row['memcpy'] / row['chain']:>12.0%} {row['memcpy'] / row['single']:>13.0%}"
        )
    smallest, largest = rows[0], rows[-1]
    print(f"64 bytes add {smallest['chain'] * 1e6:.1f} us in a tf.function (over {CHAIN} ops)")
    print(f"64 MiB run at {largest['memcpy'] / largest['chain']:.0%} of simultaneous memcpy")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"ranks": hvd.size(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
