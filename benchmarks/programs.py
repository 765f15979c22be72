"""Programs: what the suite starts, in turns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import protocol
from benchmarks.runs import Runs

ROOT = Path(__file__).resolve().parent.parent
OURS, ENGINE = "hvd_keras", "engine alone"  # the programs of this project
GRACE_SECONDS = 8
# One thread for each rank: what is compared is the exchange, not how each library shares cores.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}

# From the number of ranks and the command of one rank to the commands that start all of them.
Launcher = Callable[[int, list[str]], list[list[str]]]


@dataclass(frozen=True)
class Program:
    """Something to measure: a backend, an interpreter that has it, and how its ranks are started.

    Attributes:
        name: what tables call it.
        backend: the module in benchmarks/backends; empty for a program that is no Python.
        launcher: starts the ranks.
        interpreter: runs them.
        environment: set for them, on top of one thread for each.
        native: the command line of a program that is no Python, from the job and the files' prefix.
    """

    name: str
    backend: str
    launcher: Launcher
    interpreter: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)
    native: Callable[[dict, str], list[str]] | None = None

    def commands(self, ranks: int, job: dict, prefix: str) -> list[list[str]]:
        if self.native:
            command = self.native(job, prefix)
        else:
            module = [self.interpreter, "-m", "benchmarks.worker", self.backend]
            command = [*module, json.dumps(job), prefix]
        settings = [f"{name}={value}" for name, value in (ONE_THREAD | self.environment).items()]
        return [["env", *settings, *one] for one in self.launcher(ranks, command)]


class ProgramFailed(Exception):
    """A program has failed; the message is the end of what it said."""


def run_all(commands: Sequence[Sequence[str]], deadline: float) -> None:
    """Runs commands side by side, from the project's folder, until all have ended.

    Raises:
        ProgramFailed: one has ended with an error, or has not ended in time. None is left then.
    """
    with tempfile.TemporaryFile("w+") as output:
        processes = [
            subprocess.Popen(
                list(map(str, command)),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command in commands
        ]
        try:
            _wait(processes, time.monotonic() + deadline)
        except ProgramFailed as failure:
            output.seek(0)
            lines = [line.rstrip() for line in output.readlines() if line.strip()]
            raise ProgramFailed("\n".join([str(failure), *lines[-15:]])) from None
        finally:
            for process in processes:
                _end(process)


def _wait(processes: list[subprocess.Popen], until: float) -> None:
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            raise ProgramFailed(f"it ended with exit code {next(filter(None, codes))}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > until:
            raise ProgramFailed("it has not ended in time")
        time.sleep(0.02)


def _end(process: subprocess.Popen) -> None:
    """A launcher gets the time to end its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)


def run_program(program: Program, ranks: int, job: dict, deadline: float) -> protocol.Result:
    """Runs one program and returns what its ranks have measured.

    Raises:
        ProgramFailed, protocol.ProtocolError
    """
    with tempfile.TemporaryDirectory(prefix="hvd-bench-") as folder:
        prefix = f"{folder}/figures"
        run_all(program.commands(ranks, job, prefix), deadline)
        return protocol.read(prefix, ranks)


def run_in_turns(
    programs: Sequence[Program], ranks: int, job: dict, rounds: int, deadline: float = 600
) -> Runs:
    """Runs each program once in each round. One that fails is absent, with the reason."""
    runs = Runs(ranks)
    for number in range(rounds):
        for program in programs:
            if program.name in runs.absent:
                continue
            start = time.monotonic()
            try:
                runs.add(program.name, run_program(program, ranks, job, deadline))
                outcome = ""
            except (ProgramFailed, protocol.ProtocolError, OSError) as error:
                runs.give_up(program.name, str(error))
                outcome = f": FAILED: {error}"
            print(
                f"  round {number + 1} of {rounds}, {ranks} ranks, {program.name}: "
                f"{time.monotonic() - start:.0f} s{outcome}",
                flush=True,
            )
    return runs
