"""The library on several hosts, started by hvdrun and by each MPI's own launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hosts.rack import ROOT, Hosts

if not (ROOT / "ops" / "transport" / "mpi").exists():
    pytest.skip("hvd_keras does not know MPI yet", allow_module_level=True)

PROGRAMS = Path(__file__).with_name("programs")
PYTHON = sys.executable
SLOTS = {"host1": 2, "host2": 2}
# Importing TensorFlow four times on two cores takes a while.
DEADLINE = 180.0
NOTICE = 10.0


# Of the library under test, with quiet ranks of one thread each.
SETTINGS = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def environment() -> dict[str, str]:
    """That of a user's shell."""
    path = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    return {**os.environ, **SETTINGS, "PATH": path}


def hvdrun(slots: dict[str, int], *program: object) -> list[object]:
    hosts = ",".join(f"{host}:{n}" for host, n in slots.items())
    launcher = [PYTHON, "-m", "hvd_keras.launch", "-np", sum(slots.values()), "-H", hosts]
    return [*launcher, "--network-interfaces", "eth0", PYTHON, *program]


def check_training(folder: Path, slots: dict[str, int]) -> None:
    """All ranks have the same weights, which are those of one process fed the joined batches."""
    size = sum(slots.values())
    command = [PYTHON, PROGRAMS / "train.py", folder, size]
    subprocess.run(list(map(str, command)), check=True, timeout=DEADLINE, env=environment())
    joined = dict(np.load(folder / "joined.npz"))
    rank = 0
    for host_index, (host, count) in enumerate(slots.items()):
        for local_rank in range(count):
            mine = dict(np.load(folder / f"rank.{rank}.npz"))
            assert str(mine.pop("host")) == host
            crosses = sum(n > local_rank for n in slots.values())
            place = [rank, size, local_rank, count, host_index, crosses]
            assert mine.pop("place").tolist() == place
            first = dict(np.load(folder / "rank.0.npz"))
            assert len(mine) == 6
            for name, weights in mine.items():
                assert weights.tobytes() == first[name].tobytes()
                np.testing.assert_allclose(weights, joined[name], rtol=1e-4, atol=1e-5)
            rank += 1


@pytest.mark.parametrize("count", [2, 4])
def test_training_by_hvdrun(make_hosts, count):
    slots = {f"host{i + 1}": 4 // count for i in range(count)}
    hosts = make_hosts(count)
    command = hvdrun(slots, PROGRAMS / "train.py", hosts.shared)
    result = hosts.run("host1", command, DEADLINE, env=environment())
    assert result.returncode == 0, result.stdout + result.stderr
    check_training(hosts.shared, slots)
    for host in hosts.names:
        assert hosts.left_over(host) == {}
        assert hosts.run(host, ["ls", "/dev/shm"]).stdout == ""


def test_training_by_mpirun(make_hosts, find_mpi):
    hosts = make_hosts(2)
    program = [PYTHON, PROGRAMS / "train.py", hosts.shared]
    command = find_mpi(hosts).command(SLOTS, program, SETTINGS)
    result = hosts.run("host1", command, DEADLINE)
    assert result.returncode == 0, result.stdout + result.stderr
    check_training(hosts.shared, SLOTS)
    for host in hosts.names:
        assert hosts.left_over(host) == {}
        assert hosts.run(host, ["ls", "/dev/shm"]).stdout == ""


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def started(hosts: Hosts, command: list[object], ranks: int) -> subprocess.Popen[str]:
    """A training of which all ranks are at work."""
    process = hosts.popen("host1", command, env=environment())

    def at_work() -> bool:
        assert process.poll() is None, process.communicate()
        return all((hosts.shared / f"step.{rank}").exists() for rank in range(ranks))

    if not wait_for(at_work, DEADLINE):
        raise AssertionError(hosts.kill(process))
    return process


def errors(hosts: Hosts, ranks: range) -> dict[int, str]:
    files = {rank: hosts.shared / f"error.{rank}" for rank in ranks}
    return {rank: file.read_text() for rank, file in files.items() if file.exists()}


def test_a_link_is_cut_in_mid_training(make_hosts):
    hosts = make_hosts(2)
    process = started(hosts, hvdrun(SLOTS, PROGRAMS / "train_long.py", hosts.shared), 4)
    hosts.cut("host2")
    wait_for(lambda: len(errors(hosts, range(4))) == 4, NOTICE)
    found = errors(hosts, range(4))
    assert set(found) == {0, 1, 2, 3}, found
    # Each side knows only that it has lost the other.
    for rank in (0, 1):
        assert "host2" in found[rank], found[rank]
    for rank in (2, 3):
        assert "host1" in found[rank], found[rank]
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "host2" in out + err
    assert hosts.left_over("host1") == {}
    # MPI's daemon may wait for its launcher for long; no rank may.
    assert wait_for(lambda: "train_long.py" not in str(hosts.processes("host2")), 30)


def test_a_rank_is_killed_on_another_host(make_hosts):
    hosts = make_hosts(2)
    process = started(hosts, hvdrun(SLOTS, PROGRAMS / "train_long.py", hosts.shared, 3), 4)
    (hosts.shared / "kill").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "rank 3" in out + err and "host2" in out + err, err
    # A survivor either says who is gone or has been ended by the launcher before it could.
    for text in errors(hosts, range(3)).values():
        assert "rank 3" in text
    for host in hosts.names:
        assert hosts.left_over(host) == {}
        assert hosts.run(host, ["ls", "/dev/shm"]).stdout == ""
