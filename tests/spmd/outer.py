"""The part of plain ``pytest``: it launches the ranks and reports their tests one by one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_keras.launch import start
from spmd.inner import PLAN, RESULTS
from spmd.items import TOTAL_TIMEOUT, LaunchKey, is_spmd, launch_key, load_report
from spmd.verdict import synthetic

# When a rank dies or hangs, what is left is run by a new launch, so often.
LAUNCHES = 6
_END_SECONDS = 60.0
_LOG_LINES = 40
_MAIN = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
import pytest
sys.exit(pytest.console_main())
"""


class LaunchPlugin:
    """Registered in a pytest that is not a rank."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._launches: dict[LaunchKey, Launches] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        keys = {launch_key(item): None for item in items if is_spmd(item)}
        order = {key: at for at, key in enumerate(keys)}
        first = next((at for at, item in enumerate(items) if is_spmd(item)), 0)
        spmd = sorted(
            (item for item in items if is_spmd(item)), key=lambda item: order[launch_key(item)]
        )
        others = [item for item in items if not is_spmd(item)]
        items[:] = [*others[:first], *spmd, *others[first:]]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if is_spmd(item):
                key = launch_key(item)
                self._launches.setdefault(key, Launches(self._config, key)).add(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not is_spmd(item):
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in self._launches[launch_key(item)].reports(item.nodeid):
            hook.pytest_runtest_logreport(report=load_report(self._config, data))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # The test before this one has left set up what it shares with this one.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        for launches in self._launches.values():
            launches.stop()


class Launches:
    """The tests that share a launch; after a rank died or hung, several launches."""

    def __init__(self, config: pytest.Config, key: LaunchKey) -> None:
        self._config = config
        self._key = key
        self._items: dict[str, pytest.Item] = {}
        self._results: dict[str, list[dict[str, Any]]] = {}
        self._left = LAUNCHES
        self._before = 0
        self._why = ""
        self._launch: Launch | None = None

    def add(self, item: pytest.Item) -> None:
        """Adds a test, before the first launch."""
        self._items[item.nodeid] = item

    def reports(self, nodeid: str) -> list[dict[str, Any]]:
        """Waits for what became of a test."""
        while nodeid not in self._results:
            if self._launch is None:
                self._start()
            assert self._launch is not None
            for result in self._launch.results():
                self._take(result)
                if nodeid in self._results and not result["abort"]:
                    break
            else:
                self._close()
        if self._launch is not None and len(self._results) == len(self._items):
            for result in self._launch.results():
                self._take(result)
            self._close()
        return self._results[nodeid]

    def stop(self) -> None:
        """Ends what is still running."""
        if self._launch is not None:
            self._launch.stop()
            self._launch.remove()

    def _start(self) -> None:
        pending = [item for nodeid, item in self._items.items() if nodeid not in self._results]
        self._launch = Launch(self._config, self._key, pending)
        self._left -= 1
        self._before = len(self._results)

    def _take(self, result: dict[str, Any]) -> None:
        if result["nodeid"] is not None:
            self._results[result["nodeid"]] = result["reports"]
        else:
            self._why = result["text"]

    def _close(self) -> None:
        """The launch has ended: what it left is failed, or left to another launch."""
        launch, self._launch = self._launch, None
        assert launch is not None
        code = launch.stop()
        text = f"hvdrun ended with exit code {code}\n{launch.log()}"
        launch.remove()
        pending = [nodeid for nodeid in self._items if nodeid not in self._results]
        done = list(self._results)[self._before :]
        if done:
            self._check_end(done, code, text)
        if pending and done and self._left > 0:
            return
        for nodeid in pending:
            begin = {"nodeid": nodeid, "location": self._items[nodeid].location}
            why = f"the ranks have not run this test\n{self._why}\n{text}"
            self._results[nodeid] = synthetic(begin, why)

    def _check_end(self, done: list[str], code: int, text: str) -> None:
        """If the ranks ended badly, the last test has a failure that tells it, or gets one."""
        reports = [report for nodeid in done for report in self._results[nodeid]]
        if code == any(report["outcome"] == "failed" for report in reports):
            return
        last = self._results[done[-1]]
        failed = [report for report in last if report["outcome"] == "failed"]
        if failed:
            failed[-1]["sections"].append(("hvdrun", text))
        else:
            last[-1].update(outcome="failed", longrepr=f"after this test {text}")


class Launch:
    """One launch of ranks over some tests."""

    def __init__(self, config: pytest.Config, key: LaunchKey, items: list[pytest.Item]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hvd-launch-"))
        results = self._folder / "results"
        results.touch()
        (self._folder / "plan").write_text(json.dumps([item.nodeid for item in items]))
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        env[PLAN] = str(self._folder / "plan")
        env[RESULTS] = str(results)
        paths = dict.fromkeys(str(item.path) for item in items)
        with open(self._folder / "log", "wb") as log:
            self._job = start(
                [*_pytest_command(config), *paths],
                key.ranks,
                env=env,
                cwd=config.invocation_params.dir,
                stdout=log,
                stderr=log,
                timeout=float(config.getini("spmd_total_timeout") or TOTAL_TIMEOUT),
            )
        self._code = -1
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        self._stream = open(results, "rb")  # noqa: SIM115 - closed by remove()

    def _wait(self) -> None:
        self._code = self._job.wait().exit_code

    def results(self) -> Iterator[dict[str, Any]]:
        """The results as they come, to the end of the launch; goes on where it was left."""
        while True:
            ended = not self._thread.is_alive()
            at = self._stream.tell()
            line = self._stream.readline()
            if line.endswith(b"\n"):
                yield json.loads(line)
                continue
            self._stream.seek(at)
            if ended:
                return
            time.sleep(0.02)

    def stop(self) -> int:
        """Ends the ranks if they are still there, and returns the exit code of hvdrun."""
        if self._thread.is_alive():
            self._job.send_signal(signal.SIGTERM)
            self._thread.join(_END_SECONDS)
        return self._code

    def log(self) -> str:
        """The end of what the ranks have printed, save for rank 0's copy of the results."""
        lines = (self._folder / "log").read_text(errors="replace").splitlines()
        lines = [line for line in lines if not line.startswith("[0]<stdout>")]
        return "\n".join(lines[-_LOG_LINES:])

    def remove(self) -> None:
        """Removes the files of the launch."""
        self._stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _pytest_command(config: pytest.Config) -> list[str]:
    # The ranks import what this process imports, wherever it has been started.
    command = [sys.executable, "-c", _MAIN, json.dumps(sys.path), "-p", "no:cacheprovider"]
    command += ["--rootdir", str(config.rootpath), f"--tb={config.getoption('tbstyle')}"]
    command += ["-v"] * config.getoption("verbose")
    if config.inipath is not None:
        command += ["-c", str(config.inipath)]
    if config.getoption("maxfail"):
        command.append(f"--maxfail={config.getoption('maxfail')}")
    return command
