"""The suite: runs its parts and writes what they have measured to a folder."""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import launchers, machine, plots
from benchmarks.figures import Summary
from benchmarks.peers import PEERS
from benchmarks.programs import ENGINE, OURS, Program, run_in_turns
from benchmarks.report import Table, absence_notes, as_json
from benchmarks.runs import Runs
from benchmarks.targets import make_targets

TIMES = ("before", "after")  # when the machine is looked at
PARTS = ("collectives", "gradients", "training", "startup")


@dataclass(frozen=True)
class Choice:
    """What to measure of all that there is.

    Attributes:
        small: fewer sizes and rounds, to try the suite itself out.
        with_peers: whether to measure the peers as well.
        ranks: only these numbers of ranks; empty for all.
        rounds: how often each program is started; 0 for what each part thinks right.
        programs: only these, by name; empty for all.
    """

    small: bool = False
    with_peers: bool = True
    ranks: Sequence[int] = ()
    rounds: int = 0
    programs: Sequence[str] = ()

    def takes(self, program: str) -> bool:
        return not self.programs or program in self.programs


class Suite:
    """What a part of the suite works with.

    Args:
        folder: for tables, plots and figures; made where it is not there.
        choice: what to measure.
    """

    def __init__(self, folder: Path, choice: Choice) -> None:
        self.small = choice.small
        self.failures: list[str] = []  # ratios below their floors
        self._choice = choice
        self._folder = folder
        self._tables: list[Table] = []
        self._plots: list[str] = []
        self._runs: dict[tuple[str, int], Runs] = {}
        self._launch: Summary | None = None
        self._parts: dict[str, dict] = {}
        self._part = ""
        folder.mkdir(parents=True, exist_ok=True)
        self._machine = machine.describe()

    def run(self, parts: Sequence[str]) -> None:
        """Runs parts one after the other; what is done is written after each."""
        for self._part in parts:
            record = self._parts[self._part] = {"before": self._probe(), "runs": []}
            start = time.monotonic()
            importlib.import_module(f"benchmarks.parts.{self._part}").run(self)
            record |= {"after": self._probe(), "seconds": time.monotonic() - start}
            self._write()
        if set(parts) & set(PARTS):
            self._add_targets()
            self._write()

    def _add_targets(self) -> None:
        exchanges = [p[when]["exchange_seconds"] for p in self._parts.values() for when in TIMES]
        shared = machine.regime({"exchange_seconds": statistics.median(exchanges)}) == "A"
        targets = make_targets(self._runs, shared, self._launch)
        whole = set(PARTS) <= self._parts.keys()
        rows = [target.row() for target in targets if whole or target.measured]
        self.add_table("Targets", rows)

    def _probe(self) -> dict[str, float]:
        figures = machine.probe()
        print(f"{self._part}: {machine.probe_text(figures)}", flush=True)
        return figures

    # For the parts.

    def ours(self) -> Program:
        return Program(OURS, "ours", launchers.hvdrun)

    def engine_alone(self, command: Callable[[dict, str], list[str]]) -> Program:
        return Program(ENGINE, "", launchers.own_by_hand, native=command)

    def peers(self, part: str) -> list[Program]:
        """Those that are there; a note says which are not, and why."""
        found = []
        for peer in PEERS if self._choice.with_peers else ():
            if part not in peer.parts or not self._choice.takes(peer.name):
                continue
            reason = peer.absence()
            if reason is None:
                found.append(peer.program())
            else:
                self._parts[part].setdefault("absent", {})[peer.name] = reason
        return found

    def rank_counts(self, wanted: Sequence[int]) -> list[int]:
        return [ranks for ranks in wanted if not self._choice.ranks or ranks in self._choice.ranks]

    def run_in_turns(self, programs: Sequence[Program], ranks: int, job: dict, rounds: int) -> Runs:
        chosen = [program for program in programs if self._choice.takes(program.name)]
        rounds = self._choice.rounds or (1 if self.small else rounds)
        return run_in_turns(chosen, ranks, job, rounds)

    def add_runs(self, part: str, runs: Runs) -> None:
        self._runs[part, runs.ranks] = runs
        self._parts[part]["runs"].append(runs.as_json())

    def set_launch(self, extra: Summary) -> None:
        """Seconds that hvdrun takes longer than starting the processes by hand."""
        self._launch = extra

    def add_figures(self, name: str, times: Mapping[str, Sequence[float]]) -> None:
        """Figures that come from no program."""
        summaries = {variant: Summary.of(values).as_json() for variant, values in times.items()}
        self._parts[self._part].setdefault("figures", {})[name] = summaries

    def add_table(
        self, title: str, rows: Sequence[Mapping[str, str]], absent: Mapping[str, str] | None = None
    ) -> None:
        """Prints a table and keeps it; ``absent``: programs that have failed, and why."""
        notes = []
        if absent is not None:
            notes = absence_notes(self._parts[self._part].get("absent", {}) | absent)
        if not rows and not notes:
            return
        table = Table(title, list(rows), notes)
        self._tables.append(table)
        print(f"\n{table.text()}\n", flush=True)

    def add_plot(self, name: str, draw: Callable[[str], None]) -> None:
        if not plots.available():
            return
        draw(str(self._folder / f"{name}.png"))
        self._plots.append(f"{name}.png")

    def _write(self) -> None:
        content = {"machine": self._machine, "parts": self._parts, "tables": as_json(self._tables)}
        (self._folder / "results.json").write_text(json.dumps(content, indent=1))
        texts = [self._head(), *(table.markdown() for table in self._tables)]
        texts += [f"![{name}]({name})" for name in self._plots]
        (self._folder / "report.md").write_text("\n\n".join(texts) + "\n")

    def _head(self) -> str:
        """What was measured, and on what."""
        m = self._machine
        measured = {"this": m["versions"]}
        for runs in self._runs.values():
            measured |= {name: results[0].versions for name, results in runs.results.items()}
        lines = [
            f"- {name}: {', '.join(' '.join(pair) for pair in versions.items())}"
            for name, versions in measured.items()
            if versions
        ]
        lines += [
            f"- {name}, {when}: {machine.probe_text(part[when])}"
            for name, part in self._parts.items()
            for when in TIMES
            if when in part
        ]
        caches = ", ".join(f"{name} {size}" for name, size in m["caches"].items())
        return (
            f"# Measured\n\n{m['cores']} cores, {m['cpu']}, {m['memory_gib']} GiB, {caches}, Linux "
            f"{m['kernel']}. Medians, with the quartiles after them.\n\n" + "\n".join(lines)
        )
