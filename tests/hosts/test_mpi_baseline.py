"""Plain MPI between the hosts, without the library: what that builds on, and must not be slower."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("programs") / "mpi_allreduce.py"
NBYTES = 64 << 20


@pytest.mark.parametrize("slots", [{"host1": 1, "host2": 1}, {"host1": 2, "host2": 2}])
def test_allreduce_over_ssh(make_hosts, find_mpi, slots):
    hosts = make_hosts(2)
    mpi = find_mpi(hosts)
    before = hosts.counters("host2")
    result = hosts.run("host1", mpi.command(slots, [sys.executable, PROGRAM, NBYTES, 2]), 120)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    ranks = report["ranks"]
    assert [rank["host"] for rank in ranks] == [host for host, n in slots.items() for _ in range(n)]
    assert all(rank["right"] for rank in ranks)
    assert ("MPICH" if mpi.name.startswith("mpich") else "Open MPI") in report["library"]
    # However it is done, each host has to hear at least once what the other has, in each round, and
    # that takes its time on a link of 1 Gbit/s.
    traffic = hosts.counters("host2") - before
    assert traffic.sent > 2 * NBYTES and traffic.received > 2 * NBYTES
    limit = NBYTES * 8 / 1e9
    slowest = max(rank["seconds"] for rank in ranks)
    assert slowest > limit
    print(f"{report['library']}: {slowest:.3f} s, the wire's limit is {limit:.3f} s")
    for host in hosts.names:
        assert hosts.left_over(host) == {}
