"""``hvd.init(comm=...)``: communicators of mpi4py, and lists of ranks, over two hosts."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from hosts.rack import ROOT

PROGRAM = Path(__file__).with_name("programs") / "init_comm.py"


def test_communicators_and_lists(make_hosts, find_mpi):
    hosts = make_hosts(2, rate=None)
    mpi = find_mpi(hosts)
    env = {"PYTHONPATH": str(ROOT), "TF_NUM_INTRAOP_THREADS": "1"}
    command = mpi.command({"host1": 2, "host2": 2}, [sys.executable, PROGRAM], env)
    result = hosts.run("host1", command, 180, env={**os.environ, **mpi.environment, **env})
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    said = [json.loads(line) for line in re.findall(r"FOUND (\{.*\})", result.stdout)]
    by_number = {one["number"]: one for one in said}
    assert sorted(by_number) == [0, 1, 2, 3]
    # Rank, size, hosts, ranks of this host, sum of the processes' numbers.
    expected = {
        "split": [[1, 2, 2, 1, 2], [1, 2, 2, 1, 4], [0, 2, 2, 1, 2], [0, 2, 2, 1, 4]],
        "self": [[0, 1, 1, 1, number] for number in range(4)],
        "list": [[1, 2, 1, 2, 1], [0, 2, 1, 2, 1], [0, 2, 1, 2, 5], [1, 2, 1, 2, 5]],
        "empty list": [[number, 4, 2, 2, 6] for number in range(4)],
        "three": [[0, 3, 2, 1, 5], [], [1, 3, 2, 2, 5], [2, 3, 1, 2, 5]],
    }
    for what, places in expected.items():
        assert [by_number[number][what] for number in range(4)] == places, what
    for number, one in by_number.items():
        assert f"expected different ranks from 0 to 3, rank {number}" in one["not among them"]
        assert "a communicator of mpi4py or a list of ranks, not 'all'" in one["no communicator"]
        assert "this process is not part of it" in one["null"]
