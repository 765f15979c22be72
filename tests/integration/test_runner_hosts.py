"""hvd_keras.runner.run over several hosts; the other one is this machine, by a false ssh."""

import functools
import os
import signal
import sys

import numpy as np
import pytest

from hvd_keras import runner
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.mpi_find import find_mpi
from hvd_keras.runner import local
from tests.rank_functions import check_failure_of_work, make_failing

pytest.importorskip("cloudpickle")
try:
    find_mpi([sys.executable], os.environ)
except LaunchError as error:
    pytest.skip(str(error), allow_module_level=True)

SSH = """#!/bin/sh
while true; do
    case $1 in -p|-i|-o|-l) shift 2 ;; -*) shift ;; *) break ;; esac
done
case $1 in
    otherhost) shift; HVD_HOST_ID=otherhost exec /bin/sh -c "$*" ;;
    *) echo "ssh: Could not resolve hostname $1: Name or service not known" >&2; exit 255 ;;
esac
"""
HOSTS = "localhost:1,otherhost:1"


@pytest.fixture
def run(tmp_path):
    """``runner.run`` on two hosts."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    # Open MPI's own collectives take two hosts of one name for one.
    env = {**os.environ, "OMPI_MCA_coll": "^han"}
    env["PATH"] = f"{ssh.parent}{os.pathsep}{env['PATH']}"
    return functools.partial(runner.run, np=2, hosts=HOSTS, env=env, **local.quiet())


def test_results_and_messages(run):
    offset = 10
    heard = []

    def work(factor, *, more=0):
        import hvd_keras as hvd
        from hvd_keras.runner import log_to_driver

        hvd.init()
        log_to_driver(f"rank {hvd.rank()} of {hvd.cross_size()} hosts")
        total = hvd.allreduce(np.full(2, factor * (hvd.rank() + 1.0)), op=hvd.Sum)
        return hvd.rank(), hvd.size(), total.numpy().tolist(), offset + more

    assert run(work, (2.0,), {"more": 5}, log=heard.append) == [
        (0, 2, [6.0, 6.0], 15),
        (1, 2, [6.0, 6.0], 15),
    ]
    assert sorted(heard) == ["rank 0 of 2 hosts", "rank 1 of 2 hosts"]


def test_the_first_traceback_comes_back(run):
    with pytest.raises(runner.RankFailedError) as caught:
        run(make_failing())
    check_failure_of_work(caught.value)
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith("rank 1 of 2 (pid ")


def test_a_rank_that_is_killed(run):
    def work():
        import hvd_keras as hvd

        hvd.init()
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(runner.RankFailedError, match="rank 0 of 2 .* signal 9; its output says"):
        run(work)


def test_a_host_that_cannot_be_reached(run):
    with pytest.raises(LaunchError, match="elsewhere: its name does not resolve"):
        run(print, hosts="localhost:1,elsewhere:1")
    with pytest.raises(LaunchError, match="has only 2 slots"):
        run(print, np=3)
