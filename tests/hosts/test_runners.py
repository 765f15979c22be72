"""The runners on several hosts, two ranks on each: a Ray cluster, Spark's own, and plain Python.

The hosts of a cluster cannot log in to each other here, as in most clusters.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hosts.rack import ROOT, Hosts

PROGRAM = Path(__file__).with_name("programs") / "runners.py"
BIN = Path(sys.prefix, "bin")
START_SECONDS = 120.0
JOB_SECONDS = 240.0
# The command lines of ranks, and of what has started them.
OF_RANKS = r"mpirun|mpiexec|hydra|orted|prted|hvd_keras|runners\.py"


@pytest.fixture
def hosts(make_hosts) -> Hosts:
    missing = [name for name in ("cloudpickle", "mpi4py") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"runners over several hosts need {' and '.join(missing)}")
    return make_hosts(2, rate=None)


def environment(hosts: Hosts, *, ssh: bool) -> dict[str, str]:
    own = {
        "PYTHONPATH": str(ROOT),
        "TF_NUM_INTRAOP_THREADS": "1",
        # Hosts of one machine share its cores, which Open MPI cannot know: it must not spin.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    programs = [str(BIN), os.environ["PATH"]]
    if not ssh:
        broken = hosts.shared / "bin" / "ssh"
        broken.parent.mkdir(exist_ok=True)
        broken.unlink(missing_ok=True)
        broken.symlink_to("/bin/false")
        programs.insert(0, str(broken.parent))
    return {**os.environ, **own, "PATH": os.pathsep.join(programs)}


def start(hosts: Hosts, host: str, command: Sequence[object], sign: str) -> None:
    """Starts what stays, and waits until it has written ``sign``."""
    log = hosts.shared / f"{host}-{len(list(hosts.shared.iterdir()))}.log"
    words = ["sh", "-c", 'exec "$@" >"$0" 2>&1', log, *command]
    hosts.popen(host, words, env=environment(hosts, ssh=False))
    until = time.monotonic() + START_SECONDS
    while not (log.exists() and sign in log.read_text(errors="replace")):
        assert time.monotonic() < until, log.read_text(errors="replace")[-4000:]
        time.sleep(0.1)


def check(hosts: Hosts, *arguments: str, ssh: bool = False) -> None:
    """Runs the program's ``fit`` and its failure by one of the runners."""
    command = [sys.executable, PROGRAM, *arguments]
    result = hosts.run("host1", command, JOB_SECONDS, env=environment(hosts, ssh=ssh))
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    said = json.loads(result.stdout.splitlines()[-1])
    assert [place["rank"] for place in said["places"]] == [[rank, 4] for rank in range(4)]
    assert [place["local"] for place in said["places"]] == [[0, 2], [1, 2]] * 2
    assert [place["cross"] for place in said["places"]] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    names = [place["host"] for place in said["places"]]
    assert names[0] == names[1] != names[2] == names[3]
    assert set(names) == set(hosts.names)
    assert [place["losses"] for place in said["places"]] == [2] * 4
    assert all(weights == said["weights"][0] for weights in said["weights"])
    assert "rank 3 of 4" in said["failure"]
    assert "KeyError: 'no such column'" in said["failure"]
    for host in hosts.names:  # a cluster's own processes stay
        assert hosts.left_over(host, like=OF_RANKS) == {}


def test_run(hosts):
    check(hosts, "run", ssh=True)


def test_ray(hosts):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray")
    port = 6379
    both = ["--num-cpus=2", f"--object-store-memory={100 << 20}"]
    both += ["--disable-usage-stats", "--block"]
    for host, where in (
        ("host1", ["--head", f"--port={port}", "--include-dashboard=false"]),
        ("host2", [f"--address={hosts.address('host1')}:{port}"]),
    ):
        address = f"--node-ip-address={hosts.address(host)}"
        command = [BIN / "ray", "start", *where, address, *both]
        start(hosts, host, command, "Ray runtime started.")
    check(hosts, "ray", f"{hosts.address('host1')}:{port}")


def test_spark(hosts):
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("Spark needs pyspark and Java, which are not here")
    import pyspark

    program = Path(pyspark.__path__[0], "bin", "spark-class")
    deploy, port = "org.apache.spark.deploy", 7077
    master = ["--host", hosts.address("host1"), "--port", port]
    start(hosts, "host1", [program, f"{deploy}.master.Master", *master], "New state: ALIVE")
    url = f"spark://{hosts.address('host1')}:{port}"
    for host in hosts.names:
        where = ["--host", hosts.address(host), "--cores", 2, "--work-dir", "/tmp/work"]
        worker = [program, f"{deploy}.worker.Worker", *where, url]
        start(hosts, host, worker, "Successfully registered with master")
    check(hosts, "spark", url)
