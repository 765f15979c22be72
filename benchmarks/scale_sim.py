"""Time to agree on a training step's collectives, for up to 1,024 hosts, with and without a plan.

    .venv/bin/python -m benchmarks.scale_sim [--plot scale.png]

The coordinator and its messages are the real ones (ops/hosts), and the time that they take is
measured on this machine. The network is a model: every message takes `--latency` microseconds to
arrive and `--per-message` microseconds of its sender's and its receiver's time; the defaults are
those of TCP in one data centre. All hosts announce all collectives at once, in one message each,
which is what hosts do whose ranks wait for the coordinator. With a plan nothing is agreed: what is
counted then is the opening of one collective, in log2(hosts) rounds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import native, plots

HOSTS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def simulate(program: Path, latency: float, per_message: float, count: int) -> list[list[float]]:
    """For each number of hosts: it, median, quartiles and planned, in seconds."""
    words = [program, latency * 1e-6, per_message * 1e-6, count, *HOSTS]
    answer = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True)
    return [[float(word) for word in line.split()] for line in answer.stdout.splitlines()]


def plot(rows: list[list[float]], count: int, path: Path) -> None:
    if not plots.available():
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    lines = {
        f"agreed: {count} collectives": [(row[0], row[1] * 1e3) for row in rows],
        "by plan: opening of one": [(row[0], row[4] * 1e3) for row in rows],
    }
    plots.lines(lines, path, "Time until all hosts may execute", "hosts", "ms")
    print(f"plot: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency", type=float, default=25.0, help="of a message, us (25)")
    parser.add_argument("--per-message", type=float, default=2.0, help="of each side, us (2)")
    parser.add_argument("--collectives", type=int, default=20, help="of a step (20)")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    program = native.build("scale_sim")
    rows = simulate(program, options.latency, options.per_message, options.collectives)
    print(f"{options.collectives} collectives, {options.latency:g} us latency, ", end="")
    print(f"{options.per_message:g} us per message")
    print(f"{'hosts':>6} {'agreed, us':>12} {'quartiles':>20} {'by plan, us':>12}")
    for hosts, median, low, high, planned in rows:
        quartiles = f"{low * 1e6:.0f} to {high * 1e6:.0f}"
        print(f"{int(hosts):>6} {median * 1e6:>12.0f} {quartiles:>20} {planned * 1e6:>12.0f}")
    if options.plot:
        plot(rows, options.collectives, options.plot)


if __name__ == "__main__":
    main()
