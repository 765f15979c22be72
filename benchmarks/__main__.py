"""The benchmark suite: python -m benchmarks [PART ...]. See docs/performance.md."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from benchmarks import plots
from benchmarks.programs import ROOT
from benchmarks.suite import PARTS, Choice, Suite

GUARD = "guard"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="the folder")
    parser.add_argument("--no-peers", action="store_true", help="measure hvd_keras alone")
    parser.add_argument("--ranks", type=int, nargs="*", default=[], help="only so many ranks")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        metavar="NAME",
        help="only these programs, for example 'engine alone' hvd_keras MPICH",
    )
    parser.add_argument("--rounds", type=int, default=0, help="start each program so often")
    parser.add_argument("--small", action="store_true", help="a short run, to try the suite out")
    options = parser.parse_args()
    unknown = set(options.parts) - {*PARTS, GUARD}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not plots.available():
        print("no plots: pip install matplotlib", flush=True)
    # So that what was started is ended as well.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    choice = Choice(
        options.small, not options.no_peers, options.ranks, options.rounds, options.only
    )
    suite = Suite(options.out, choice)
    start = time.monotonic()
    suite.run(options.parts or PARTS)
    print(f"{options.out}: report.md, results.json; {time.monotonic() - start:.0f} s")
    for failure in suite.failures:
        print(f"below its floor, or not measured: {failure}")
    return 1 if suite.failures else 0


if __name__ == "__main__":
    sys.exit(main())
