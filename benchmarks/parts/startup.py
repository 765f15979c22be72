"""Start-up time, memory of each rank, and what idle ranks cost."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from benchmarks import launchers
from benchmarks.figures import Summary, interleave, ratio
from benchmarks.programs import ONE_THREAD, Program, run_all
from benchmarks.runs import Runs

if TYPE_CHECKING:
    from benchmarks.suite import Suite

RANK = "one rank"
MIB = 1 << 20
NOTHING = "pass"
JOIN = "import hvd_keras as hvd; hvd.init()"


def native_command(job: dict, prefix: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.startup_rank", json.dumps(job), prefix]


def run(suite: Suite) -> None:
    program = Program(RANK, "", launchers.hvdrun, native=native_command)
    rows = []
    for ranks in suite.rank_counts([2, 4] if suite.small else [2, 4, 8]):
        rounds = 8 if ranks == 2 else 0
        job = {"ranks": ranks, "rounds": rounds, "idle_seconds": 5.0}
        runs = suite.run_in_turns([program], ranks, job, rounds=3 if ranks == 2 else 1)
        suite.add_runs("startup", runs)
        if not runs.absent:
            rows.append(memory_row(runs))
        if ranks == 2:
            suite.add_table("Start and idleness, 2 ranks", start_rows(runs), runs.absent)
    suite.add_table(f"Memory of a rank beyond TensorFlow, MiB; at most {bound() / MIB:g}", rows)
    suite.add_table("hvdrun against processes started by hand, 2 ranks", launch_rows(suite))


def bound() -> int:
    """What the project allows itself: twice the largest bucket, and 16 MiB."""
    from hvd_keras.settings import DEFAULT_FUSION_THRESHOLD

    return 2 * DEFAULT_FUSION_THRESHOLD + 16 * MIB


def memory_row(runs: Runs) -> dict[str, str]:
    row = {"ranks": str(runs.ranks)}
    for kind, title in (
        ("peak", "peak, the segment counted whole in every rank"),
        ("steady", "after the step, the segment counted once for all"),
    ):
        summary = runs.summary(RANK, what="memory", kind=kind)
        row[title] = summary.text(1 / MIB) if summary else "-"
    return row


def start_rows(runs: Runs) -> list[dict[str, str]]:
    rows = []
    for what, scale, unit in (
        ("first init", 1e3, "ms"),
        ("init again", 1e3, "ms"),
        ("idle CPU", 100.0, "% of a core"),
    ):
        summary = runs.summary(RANK, what=what)
        if summary:
            rows.append({"what": what, "figure": f"{summary.text(scale)} {unit}"})
    speed = runs.paired_ratio(RANK, {"what": "work outside"}, {"what": "work in a job"})
    if speed:
        rows.append({"what": "speed of other threads in a job", "figure": speed.percent()})
    return rows


def launch_rows(suite: Suite) -> list[dict[str, str]]:
    """Seconds until all processes have ended; their difference is what the launcher costs."""
    rows = []
    for what, script, rounds in (
        ("an empty script", NOTHING, 5 if suite.small else 15),
        ("a script that calls hvd.init()", JOIN, 2 if suite.small else 5),
    ):
        python = [sys.executable, "-c", script]
        times = interleave(
            {
                "by hand": lambda python=python: _run(launchers.own_by_hand(2, python)),
                "hvdrun": lambda python=python: _run(launchers.hvdrun(2, python)),
            },
            rounds,
            before=lambda: None,
        )
        suite.add_figures(f"launch: {what}", times)
        pairs = zip(times["hvdrun"], times["by hand"], strict=True)
        extra = Summary.of([launched - by_hand for launched, by_hand in pairs])
        if script == NOTHING:
            suite.set_launch(extra)
        rows.append(
            {
                "what": what,
                **{f"{name}, s": Summary.of(values).text() for name, values in times.items()},
                "difference, s": extra.text(),
                "ratio": ratio(times["hvdrun"], times["by hand"]).text(),
            }
        )
    return rows


def _run(commands: list[list[str]]) -> None:
    settings = ["env", *(f"{name}={value}" for name, value in ONE_THREAD.items())]
    run_all([[*settings, *command] for command in commands], deadline=120)
