"""The part of each rank: it runs every test in step with the others, and shows one verdict."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.runner import runtestprotocol

from spmd import place, referee
from spmd.channel import Channel
from spmd.items import is_marked, is_spmd, launch_key, load_report, timeout_of

PLAN = "HVD_SPMD_PLAN"
RESULTS = "HVD_SPMD_RESULTS"
# Importing TensorFlow takes seconds, on a busy machine many.
START_SECONDS = 180.0
IDLE_SECONDS = 120.0
REPORT_SECONDS = 3.0


class RankPlugin:
    """Registered in a process that hvdrun or an MPI launcher has started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        identity = place.identity()
        assert identity is not None
        self._rank, self._size = identity
        self._address = place.address()
        self._errors: list[str] = []
        self._referee: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._folder = Path()
        self._in_test = False
        self._is_ended = False

    # Start and end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._rank == 0:
            self._start_referee()
        else:
            self._be_quiet()
        # Where this rank is, for the referee, should it hang.
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 - until the process ends
        faulthandler.register(referee.DUMP_SIGNAL, file=self._dump, all_threads=True)
        self._channel = Channel(self._address, START_SECONDS, self._has_no_referee)
        dump = f"/proc/{os.getpid()}/fd/{self._dump.fileno()}"
        hello = {"meet": "hello", "rank": self._rank, "pid": os.getpid(), "dump": dump}
        self._folder = Path(self._ask({**hello, "host": place.host()})["folder"])

    def _start_referee(self) -> None:
        arguments = [self._address, str(self._size), os.environ.get(RESULTS, "")]
        arguments += [os.environ.get(place.FOLDER, ""), str(START_SECONDS), str(IDLE_SECONDS)]
        command = [sys.executable, "-I", "-S", referee.__file__, *arguments]
        self._referee = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _has_no_referee(self) -> bool:
        return self._referee is not None and self._referee.poll() is not None

    def _be_quiet(self) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            nowhere = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
            reporter._tw = create_terminal_writer(self._config, nowhere)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._channel is not None:
            if not self._in_test:
                with contextlib.suppress(OSError):  # the run may have been ended
                    self._channel.ask({"meet": "bye"})
            self._channel.close()
        if self._referee is not None:
            self._referee.wait(30)

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._channel is not None
        try:
            answer = self._channel.ask(message)
        except OSError as error:
            answer = {"abort": f"{error}"}
        if "abort" in answer and "reports" not in answer:
            self._leave(answer["abort"])
        return answer

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._is_ended and place.is_under_mpi():
            # At its end a process waits in MPI_Finalize for the others, also for one that hangs on
            # another host. So the launcher is given a reason to end all, when rank 0 has reported.
            if self._rank != 0:
                time.sleep(REPORT_SECONDS)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(2)

    def _leave(self, text: str) -> None:
        self._is_ended = True
        if self._rank != 0:  # rank 0 may be the one that cannot say it
            print(f"\nthe run of rank {self._rank} is ended: {text}", file=sys.stderr)
        pytest.exit(f"the run of all ranks is ended: {text}", returncode=2)

    # Collection

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if PLAN in os.environ:
            self._follow_plan(items)
            return
        spmd = [item for item in items if is_spmd(item)]
        self._deselect([item for item in items if not is_spmd(item)])
        items[:] = spmd
        groups = {launch_key(item).group for item in spmd if self._fits(item)}
        for item in spmd:
            key = launch_key(item)
            if not self._fits(item):
                item.add_marker(pytest.mark.skip(f"needs {key.ranks} ranks: hvdrun -np ..."))
            elif key.group and len(groups) > 1:
                item.add_marker(pytest.mark.skip(f"group {key.group!r} needs its own launch"))

    def _fits(self, item: pytest.Item) -> bool:
        return not is_marked(item) or launch_key(item).ranks == self._size

    def _follow_plan(self, items: list[pytest.Item]) -> None:
        planned = json.loads(Path(os.environ[PLAN]).read_text())
        found = {item.nodeid: item for item in items}
        self._errors += [f"{nodeid} is not found" for nodeid in planned if nodeid not in found]
        chosen = [found[nodeid] for nodeid in planned if nodeid in found]
        self._deselect([item for item in items if item not in chosen])
        items[:] = chosen

    def _deselect(self, items: Sequence[pytest.Item]) -> None:
        if items:
            self._config.hook.pytest_deselected(items=items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors.append(report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        ids = [item.nodeid for item in session.items]
        error = "\n".join(self._errors)
        self._ask({"meet": "collected", "ids": ids, "error": error})

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._ask(
            {
                "meet": "begin",
                "nodeid": item.nodeid,
                "location": item.location,
                "timeout": timeout_of(item),
            }
        )
        self._in_test = True  # pytest.exit() in the test leaves it so
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        self._in_test = False
        answer = self._ask({"meet": "end", "nodeid": item.nodeid, **self._message(reports)})
        for data in answer["reports"]:
            hook.pytest_runtest_logreport(report=load_report(self._config, data))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if "abort" in answer:
            self._leave(answer["abort"])
        return True

    def _message(self, reports: Sequence[pytest.TestReport]) -> dict[str, Any]:
        to_data = self._config.hook.pytest_report_to_serializable
        return {
            "outcome": _outcome(reports),
            "reports": [to_data(config=self._config, report=report) for report in reports],
            "text": "\n".join(_reason(report) for report in reports if not report.passed),
        }

    @pytest.fixture
    def shared_tmp_path(self, request: pytest.FixtureRequest) -> Path:
        """An empty folder that is the same on all ranks; it is removed at the end of the run."""
        name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder


def _outcome(reports: Sequence[pytest.TestReport]) -> str:
    if any(report.failed for report in reports):
        return "failed"
    for report in reports:
        if hasattr(report, "wasxfail"):
            return "xfailed" if report.skipped else "xpassed"
    return "skipped" if any(report.skipped for report in reports) else "passed"


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return f"({report.longrepr[2]})"
    return report.longreprtext
