"""Running hvdrun as a user does, and checking that nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hvd_keras
from tests.processes import running

# Where the hvd_keras under test lies: installed, or in its source folder.
ROOT = Path(hvd_keras.__file__).parents[1]
DEADLINE = 30.0
MARK = "HVD_TEST_MARK"
IDENTITY = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "SEGMENT")
UNWANTED = {f"HVD_{name}" for name in IDENTITY} | {"OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"}


# Under nohup, and in the background of a script, they are ignored, which hvdrun and the ranks would
# inherit.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


class Launcher:
    """Starts hvdrun in a folder of its own; all processes below carry a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        # A time to sleep that marks processes whose environment was cleared.
        self.nap = str(10**6 + int(self.mark[:8], 16))
        self.env = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        self.env[MARK] = self.mark
        self.env["PYTHONPATH"] = str(ROOT)
        self.deadline = DEADLINE
        self._started: list[subprocess.Popen[str]] = []

    def script(self, text: str, name: str = "script.py") -> str:
        """Writes a script and returns its name."""
        (self.folder / name).write_text(text)
        return name

    def start(self, *arguments: object, **how: object) -> subprocess.Popen[str]:
        """Starts ``hvdrun arguments``."""
        options: dict = {
            "cwd": self.folder,
            "env": self.env,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **how,
        }
        command = [sys.executable, "-m", "hvd_keras.launch", *map(str, arguments)]
        process = subprocess.Popen(command, **options)
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Waits for the end of hvdrun and of all that it started."""
        out, err = process.communicate(timeout=self.deadline)
        assert self.wait_for(lambda: not self.marked()), f"left running: {self.marked()}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def __call__(self, *arguments: object, **how: object) -> subprocess.CompletedProcess[str]:
        """Runs ``hvdrun arguments`` to its end."""
        return self.finish(self.start(*arguments, **how))

    def python(self, num_proc: int, text: str, *options: object) -> subprocess.Popen[str]:
        """Starts ``hvdrun -np num_proc options python script``."""
        return self.start("-np", num_proc, *options, sys.executable, self.script(text))

    def run_python(
        self, num_proc: int, text: str, *options: object
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``hvdrun -np num_proc options python script``."""
        return self.finish(self.python(num_proc, text, *options))

    def marked(self) -> list[tuple[int, str]]:
        """The living processes that descend from this launcher."""
        wanted = f"{MARK}={self.mark}".encode()
        return [
            (process.pid, process.line)
            for process in running()
            if wanted in process.environ or self.nap.encode() in process.words
        ]

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Waits until the condition holds; returns whether it does."""
        until = time.monotonic() + self.deadline
        while time.monotonic() < until:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def wait_for_files(self, *names: str) -> None:
        """Waits until the scripts have written these files."""
        assert self.wait_for(lambda: all((self.folder / name).exists() for name in names))

    def clean(self) -> None:
        """Ends what a failed test has left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid, _ in self.marked():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "hvd" in name.lower()}


@pytest.fixture
def hvdrun(tmp_path: Path) -> Iterator[Launcher]:
    """hvdrun; after the test no process and nothing in /dev/shm may be left."""
    before = _shared_memory()
    launcher = Launcher(tmp_path)
    try:
        yield launcher
        assert launcher.wait_for(lambda: not launcher.marked()), launcher.marked()
        assert launcher.wait_for(lambda: _shared_memory() <= before), _shared_memory() - before
    finally:
        launcher.clean()
