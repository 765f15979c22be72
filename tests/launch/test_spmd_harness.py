"""The harness of the SPMD tests: what fails on one rank fails, by name, and nothing hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DEADLINE = 90.0
CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from spmd import plugin
pytest_addoption = plugin.add_options
pytest_configure = plugin.configure
"""
HEAD = """
import os, pytest, sys, time
rank = int(os.environ.get("HVD_RANK", -1))
size = int(os.environ.get("HVD_SIZE", -1))
"""


class Project:
    """A folder of tests, run by a pytest of its own."""

    def __init__(self, hvdrun):
        self.hvdrun = hvdrun
        temporary = hvdrun.folder / "tmp"
        temporary.mkdir()
        self.env = {**hvdrun.env, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(temporary)}
        self.write("conftest.py", CONFTEST)
        self.write("pytest.ini", "[pytest]\naddopts = -p no:cacheprovider --strict-markers\n")

    def write(self, name, text):
        path = self.hvdrun.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def tests(self, text, name="parallel/test_it.py"):
        self.write(name, HEAD + text)

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-v", *arguments],
            env=self.env,
            cwd=self.hvdrun.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments):
        """Returns the outcome of each test by its name, the exit code and the whole text."""
        process = self.start(*arguments)
        try:
            text, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
            process.wait()
        assert self.hvdrun.wait_for(lambda: not self.hvdrun.marked()), self.hvdrun.marked()
        words = re.findall(r"^\S*?::(\S+) ([A-Z]+)", text, re.MULTILINE)
        return dict(words), process.returncode, text


@pytest.fixture
def project(hvdrun):
    return Project(hvdrun)


def test_tests_run_on_all_ranks_and_are_counted_once(project):
    project.tests(
        """
def test_size():
    assert 0 <= rank < size == 2

@pytest.mark.parametrize("x", [1, "two"])
def test_parameter(x):
    pass

def test_skipped():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
def test_expected():
    assert False

class TestClass:
    def test_method(self, tmp_path, shared_tmp_path):
        assert tmp_path.is_dir()
        (shared_tmp_path / str(rank)).touch()
"""
    )
    project.tests("def test_alone(): assert rank == -1", "test_serial.py")
    outcomes, code, text = project.run()
    assert outcomes == {
        "test_alone": "PASSED",
        "test_size": "PASSED",
        "test_parameter[1]": "PASSED",
        "test_parameter[two]": "PASSED",
        "test_skipped": "SKIPPED",
        "test_expected": "XFAIL",
        "TestClass::test_method": "PASSED",
    }
    assert code == 0
    assert "5 passed, 1 skipped, 1 xfailed" in text


def test_one_launch_for_each_number_of_ranks_and_group(project):
    project.tests(
        """
LOG = "pids"

@pytest.fixture(scope="session", autouse=True)
def log():
    with open(LOG, "a") as file:
        file.write(f"{os.environ['HVD_SEGMENT']} {rank} {size}\\n")

def test_a(): assert size == 2
@pytest.mark.ranks(3)
def test_b(): assert size == 3
def test_c(): assert size == 2
@pytest.mark.ranks(3)
def test_d(): assert size == 3
@pytest.mark.ranks(2, group="graph")
def test_e(): assert size == 2
@pytest.mark.ranks(1)
def test_f(): assert size == 1
"""
    )
    outcomes, code, text = project.run()
    assert set(outcomes.values()) == {"PASSED"}, text
    assert len(outcomes) == 6
    lines = sorted((project.hvdrun.folder / "pids").read_text().split("\n")[:-1])
    assert sorted(line.split(" ", 1)[1] for line in lines) == sorted(
        [f"{rank} 2" for rank in (0, 1)] * 2 + [f"{rank} 3" for rank in range(3)] + ["0 1"]
    )
    assert len({line.split()[0] for line in lines}) == 4


def test_failures_are_shown_with_the_rank_that_failed(project):
    project.tests(
        """
def test_on_rank_1():
    print("printed by", rank)
    assert rank != 1, "only there"

def test_on_both():
    raise ValueError(f"on {rank}")

def test_skipped_on_one():
    if rank == 1:
        pytest.skip("rank 1 only")

@pytest.fixture
def broken():
    yield
    assert rank != 1, "in teardown"

def test_teardown(broken):
    pass

@pytest.fixture
def broken_setup():
    assert rank != 0, "in setup"

def test_setup(broken_setup):
    pass

def test_fine():
    pass
"""
    )
    outcomes, code, text = project.run("-rfE")
    assert code == 1
    assert outcomes["test_on_rank_1"] == outcomes["test_on_both"] == "FAILED"
    assert outcomes["test_skipped_on_one"] == "FAILED"
    assert outcomes["test_setup"] == "ERROR"
    assert outcomes["test_fine"] == "PASSED"
    assert re.search(r"FAILED \S*::test_on_rank_1 - \[rank 1\] AssertionError: only there", text)
    assert "rank 1 failed, rank 0 did not" in text
    assert "printed by 1" in text
    assert "printed by 0" not in text
    assert "ValueError: on 0" in text
    assert "ValueError: on 1" in text
    assert "rank 1: skipped (Skipped: rank 1 only)" in text
    assert re.search(r"ERROR \S*::test_teardown - \[rank 1\] AssertionError: in teardown", text)
    assert re.search(r"ERROR \S*::test_setup - \[rank 0\] AssertionError: in setup", text)


def test_a_hanging_rank_fails_its_test_only(project):
    project.tests(
        """
def test_before(): pass

@pytest.mark.ranks(2, timeout=2)
def test_hangs():
    if rank == 0:
        time.sleep(1000)

def test_after(): pass
"""
    )
    outcomes, code, text = project.run()
    assert outcomes == {"test_before": "PASSED", "test_hangs": "FAILED", "test_after": "PASSED"}
    assert code == 1
    assert "did not end the test within 2 s" in text
    assert "in test_hangs" in text  # its stack


@pytest.mark.parametrize(
    ("victim", "end", "how"),
    [
        (0, "os._exit(7)", "exit code 7"),
        (0, "pytest.exit('enough')", "exit code 2"),
        (1, "os._exit(0)", "exit code"),
        (1, "os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_a_rank_that_ends_fails_its_test_only(project, victim, end, how):
    project.tests(
        f"""
def test_before(): pass

def test_ends():
    if rank == {victim}:
        {end}

def test_after(): pass
"""
    )
    outcomes, code, text = project.run()
    assert outcomes == {"test_before": "PASSED", "test_ends": "FAILED", "test_after": "PASSED"}
    assert code == 1
    assert re.search(rf"FAILED \S*::test_ends - rank {victim} \(pid \d+\) ended", text)
    assert how in text


def test_a_rank_that_fails_while_its_peer_waits_for_it(project):
    project.env["HVD_SPMD_STRAGGLER_SECONDS"] = "1"
    project.tests(
        """
def test_stuck():
    assert rank == 0, "the cause"
    time.sleep(1000)

def test_after(): pass
"""
    )
    outcomes, code, text = project.run()
    assert outcomes == {"test_stuck": "FAILED", "test_after": "PASSED"}
    assert re.search(r"FAILED \S*::test_stuck - \[rank 1\] AssertionError: the cause", text)
    assert "rank 0 (pid" in text


def test_a_forked_child_does_not_hide_the_death_of_its_rank(project):
    project.tests(
        """
def test_ends():
    if rank == 1:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(3)
"""
    )
    outcomes, code, text = project.run()
    assert outcomes == {"test_ends": "FAILED"}
    assert "exit code 3" in text


def test_a_bad_end_after_the_last_test_is_told(project):
    project.tests(
        """
import atexit

def test_last():
    if rank == 1:
        atexit.register(os._exit, 5)
"""
    )
    outcomes, code, text = project.run()
    assert code == 1
    assert "hvdrun ended with exit code 5" in text


def test_tests_that_differ_by_rank(project):
    project.tests(
        """
@pytest.mark.parametrize("x", [0, 1 if rank == 1 else 2])
def test_parameter(x):
    pass
"""
    )
    outcomes, code, text = project.run()
    assert code == 1
    assert "is not found" in text
    assert "PASSED" not in outcomes.values()


def test_import_error_on_one_rank(project):
    project.tests("if rank == 1: raise ImportError('only on rank 1')\ndef test_it(): pass")
    outcomes, code, text = project.run()
    assert outcomes == {"test_it": "FAILED"}
    assert "rank 1: " in text
    assert "only on rank 1" in text


def test_selection_and_maxfail(project):
    project.tests("def test_a(): assert 0\ndef test_b(): pass\ndef test_c(): assert 0")
    assert project.run("-k", "test_b")[0] == {"test_b": "PASSED"}
    assert project.run("parallel/test_it.py::test_c")[0] == {"test_c": "FAILED"}
    assert project.run("-x")[0] == {"test_a": "FAILED"}


def test_total_deadline(project):
    ini = "[pytest]\naddopts = -p no:cacheprovider\nspmd_total_timeout = 2\n"
    project.write("pytest.ini", ini)
    project.tests("def test_a(): pass\ndef test_long(): time.sleep(1000)")
    outcomes, code, text = project.run()
    assert outcomes == {"test_a": "PASSED", "test_long": "FAILED"}
    assert "the job took longer than 2 s" in text


def test_ranks_end_with_the_pytest_that_launched_them(project):
    project.tests("def test_long():\n    open(f'ready{rank}', 'w')\n    time.sleep(1000)")
    process = project.start()
    project.hvdrun.wait_for_files("ready0", "ready1")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert project.hvdrun.wait_for(lambda: not project.hvdrun.marked())


def test_interrupt(project):
    project.tests("def test_long():\n    open(f'ready{rank}', 'w')\n    time.sleep(1000)")
    process = project.start()
    project.hvdrun.wait_for_files("ready0", "ready1")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=DEADLINE)
    assert "KeyboardInterrupt" in text
    assert project.hvdrun.wait_for(lambda: not project.hvdrun.marked())


def direct(project, num_proc, *arguments):
    command = [sys.executable, "-m", "pytest", "-v", *arguments]
    return project.hvdrun("-np", num_proc, "--", *command, env=project.env)


def test_direct_launch(project):
    project.tests(
        """
def test_fails():
    assert rank != 1, "there"

def test_any(): pass

@pytest.mark.ranks(3)
def test_three(): pass

@pytest.mark.ranks(2, group="graph")
def test_group(): pass
"""
    )
    project.tests("def test_serial(): pass", "test_serial.py")
    result = direct(project, 2)
    assert result.returncode == 1
    assert "[1]<stdout>" not in result.stdout
    assert "test_fails FAILED" in result.stdout
    assert "AssertionError: there" in result.stdout
    assert "test_any PASSED" in result.stdout
    assert "test_three SKIPPED (needs 3 ranks" in result.stdout
    assert "test_group SKIPPED" in result.stdout
    assert "test_serial" not in result.stdout
    result = direct(project, 3, "-k", "any or three")
    assert result.returncode == 0
    assert "2 passed" in result.stdout
    result = direct(project, 2, "-k", "group")
    assert "1 passed" in result.stdout


def test_direct_launch_with_a_hanging_rank(project):
    project.tests(
        """
@pytest.mark.ranks(2, timeout=1)
def test_hangs():
    time.sleep(1000 * (rank == 1))
"""
    )
    result = direct(project, 2)
    assert result.returncode != 0
    assert "FAILED" in result.stdout
    assert "rank 1 (pid" in result.stdout


def test_nothing_is_left_in_the_temporary_folder(project):
    project.tests("def test_it(shared_tmp_path): (shared_tmp_path / str(rank)).touch()")
    assert project.run()[1] == 0
    assert not [name for name in os.listdir(project.env["TMPDIR"]) if name.startswith("hvd")]
