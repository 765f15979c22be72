"""hvdrun on several hosts, with ranks that use plain MPI."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts.mpi import Mpi
from hosts.rack import ROOT, Hosts

if importlib.util.find_spec("hvd_keras.launch.mpi_job") is None:
    pytest.skip("hvdrun does not know MPI yet", allow_module_level=True)

PROGRAM = Path(__file__).with_name("programs") / "ranks.py"
SLOTS = "host1:2,host2:2"
TEXT = "spaces, 'quotes', \"more\" and $HOME\\"
DEADLINE = 60.0


def environment(mpi: Mpi | None = None) -> dict[str, str]:
    """The user's, in which mpi4py finds this MPI, or else the one that it would find by itself."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "HVD_TEST_TEXT": TEXT}
    return {**os.environ, **own, **(mpi.environment if mpi else {})}


def hvdrun(hosts: Hosts, what: str, *options: object, where: str = SLOTS) -> list[object]:
    launcher = [sys.executable, "-m", "hvd_keras.launch", "-np", 4, "-H", where, *options]
    return [*launcher, sys.executable, PROGRAM, what, hosts.shared]


def reports(text: str) -> list[dict]:
    """What the ranks have printed, in the order of the ranks."""
    lines = re.findall(r"^\[(\d)\]<stdout>: *(\{.*\})$", text, re.M)
    found = sorted((json.loads(line) for _, line in lines), key=lambda report: report["rank"])
    assert sorted(int(rank) for rank, _ in lines) == [report["rank"] for report in found]
    return found


def check_nothing_is_left(hosts: Hosts) -> None:
    for host in hosts.names:
        assert hosts.left_over(host) == {}


def wait_for(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def started(hosts: Hosts) -> subprocess.Popen[str]:
    """A job whose ranks have met."""
    process = hosts.popen("host1", hvdrun(hosts, "wait"), env=environment())
    assert wait_for(lambda: all((hosts.shared / f"met.{rank}").exists() for rank in range(4)))
    return process


def pid_of_hvdrun(hosts: Hosts) -> int:
    """The process id on this machine of the hvdrun that the user has started."""
    found = [
        pid
        for pid, line in hosts.processes("host1").items()
        if line.startswith(f"{sys.executable} -m hvd_keras.launch -np")
    ]
    assert found, hosts.processes("host1")
    return min(found)


def test_ranks_come_to_their_hosts(make_hosts, find_mpi):
    hosts = make_hosts(2)
    mpi = find_mpi(hosts)
    result = hosts.run("host1", hvdrun(hosts, "end"), DEADLINE, env=environment(mpi))
    assert result.returncode == 0, result.stdout + result.stderr
    found = reports(result.stdout)
    assert [report["host"] for report in found] == ["host1", "host1", "host2", "host2"]
    for rank, report in enumerate(found):
        assert (report["rank"], report["size"], report["sum"]) == (rank, 4, 10)
        assert report["folder"] == str(hosts.shared)
        assert report["text"] == TEXT
        assert ("MPICH" if mpi.name.startswith("mpich") else "Open MPI") in report["library"]
    check_nothing_is_left(hosts)


def test_a_rank_is_killed_on_another_host(make_hosts, find_mpi):
    hosts = make_hosts(2)
    env = environment(find_mpi(hosts))
    result = hosts.run("host1", hvdrun(hosts, "die"), DEADLINE, env=env)
    assert result.returncode == 128 + signal.SIGKILL
    last = result.stderr.splitlines()[-1]
    assert "rank 3 of 4 (host host2" in last
    assert "failed first: killed by SIGKILL" in last
    check_nothing_is_left(hosts)


@pytest.mark.parametrize(
    ("where", "options", "message"),
    [
        ("host1:2,host9:2", [], "host9: its name does not resolve"),
        (SLOTS, ["-p", "2222"], "host2 port 2222: the connection is refused"),
    ],
)
def test_ssh_that_cannot_work_is_told_before_anything_starts(make_hosts, where, options, message):
    hosts = make_hosts(2)
    command = hvdrun(hosts, "end", *options, where=where)
    result = hosts.run("host1", command, DEADLINE, env=environment())
    assert result.returncode == 2
    assert message in result.stderr
    assert list(hosts.shared.glob("met.*")) == []


def test_ssh_port(make_hosts):
    hosts = make_hosts(2, ssh_port=2222)
    command = hvdrun(hosts, "end", "-p", 2222, "--network-interfaces", "eth0")
    result = hosts.run("host1", command, DEADLINE, env=environment())
    assert result.returncode == 0, result.stderr
    assert len(reports(result.stdout)) == 4


def test_a_host_behind_a_cut_link_is_named_at_start(make_hosts):
    hosts = make_hosts(2)
    hosts.cut("host2")
    result = hosts.run("host1", hvdrun(hosts, "end"), DEADLINE, env=environment())
    assert result.returncode == 2
    # The kernel says so itself where it had not met the host before.
    assert re.search("host2: (no answer|there is no route)", result.stderr)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_hvdrun(make_hosts, signum):
    hosts = make_hosts(2)
    process = started(hosts)
    os.kill(pid_of_hvdrun(hosts), signum)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode != 0, out + err
    check_nothing_is_left(hosts)
