"""hvd_keras.spark.run over several hosts: two executors on this machine that claim to be two hosts.

The real MPI launcher starts the ranks, through the agents of hvd_keras.runner.mpi.
"""

import os
import shutil
import signal
import sys
import threading
import time

import pytest

import hvd_keras.spark
from hvd_keras import runner
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.mpi_find import find_mpi
from tests.processes import running
from tests.rank_functions import check_failure_of_work, make_failing, make_fit

pytest.importorskip("cloudpickle")
pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java, which is not here", allow_module_level=True)
try:
    find_mpi([sys.executable], os.environ)
except LaunchError as error:
    pytest.skip(str(error), allow_module_level=True)

MARK = f"HVD_HOST_ID=spark-hosts-{os.getpid()}-"
# Each executor of a local cluster has a folder of its own, named by its number.
PYTHON = """#!/bin/sh
{mark}$(basename "$PWD") exec {python} "$@"
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    python = tmp_path_factory.mktemp("python") / "python"
    python.write_text(PYTHON.format(mark=MARK, python=sys.executable))
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(python))
        builder = SparkSession.builder.master("local-cluster[2,1,1024]")
        builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        # Open MPI's own collectives take two hosts of one name for one.
        session = builder.config("spark.executorEnv.OMPI_MCA_coll", "^han").getOrCreate()
        yield session
        session.stop()


def processes_of_jobs():
    """What the executors have started, beside Spark's own processes."""
    of_executors = [p for p in running() if any(MARK.encode() in pair for pair in p.environ)]
    return {p.pid: p.line for p in of_executors if p.line and "pyspark." not in p.line}


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    until = time.monotonic() + 30
    while processes_of_jobs() and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_of_jobs()


def test_fit_on_two_hosts(spark, capfd):
    fit = make_fit()

    def train(scale):
        import hvd_keras as hvd
        from hvd_keras.runner import log_to_driver

        hvd.init()
        losses, weights = fit(scale, 2)
        print("printed by", hvd.rank())
        log_to_driver(f"told by {hvd.rank()}")
        place = hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        return place, losses, weights

    first, second = hvd_keras.spark.run(train, kwargs={"scale": 1.0}, num_proc=2)
    assert (first[0], second[0]) == ((0, 2, 1, 0, 2), (1, 2, 1, 1, 2))
    assert len(first[1]) == 2 and first[1] != second[1]
    assert all((a == b).all() for a, b in zip(first[2], second[2], strict=True))
    out = capfd.readouterr().out
    for rank in range(2):
        assert f"[{rank}] printed by {rank}" in out and f"told by {rank}" in out


def test_the_first_traceback_comes_back(spark):
    with pytest.raises(runner.RankFailedError) as caught:
        hvd_keras.spark.run(make_failing(), num_proc=2, show_output=False)
    check_failure_of_work(caught.value)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed(spark, victim):
    def work():
        import hvd_keras as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    expected = f"rank {victim} of 2 has failed, with killed by SIGKILL"
    with pytest.raises(runner.RankFailedError, match=expected):
        hvd_keras.spark.run(work, num_proc=2, show_output=False)


def test_a_job_that_is_cancelled(spark, tmp_path):
    def work():
        import os
        import time

        import hvd_keras as hvd

        hvd.init()
        hvd.barrier()
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    outcome = []

    def run():
        try:
            hvd_keras.spark.run(work, num_proc=2, show_output=False)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until = time.monotonic() + 180
    while len(list(tmp_path.iterdir())) < 2 and thread.is_alive():
        assert time.monotonic() < until, "the ranks did not start"
        time.sleep(0.1)
    assert len(processes_of_jobs()) > 6  # ranks and stand-ins, two agents, MPI's launcher
    spark.sparkContext.cancelAllJobs()
    thread.join(60)
    assert "cancelled" in str(outcome[0])


def test_without_mpi(spark):
    with pytest.raises(runner.RankFailedError, match="rank 0 of 2 could not be started: .*mpi4py"):
        hvd_keras.spark.run(print, num_proc=2, env={"MPI4PY_LIBMPI": "/no/such/libmpi.so"})
