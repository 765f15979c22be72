"""hvd_keras.spark.run and HorovodRunner(np > 0) on real Spark: tasks in barrier mode."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from hvd_keras import runner
from tests.processes import running
from tests.rank_functions import check_failure_of_work, make_failing

pytest.importorskip("cloudpickle")
pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java, which is not here", allow_module_level=True)

LAUNCH = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").getOrCreate()
"""
TRAIN = """
import hvd_keras.spark

def train(scale):
    import keras
    import numpy as np
    import hvd_keras as hvd

    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.full((4, 2), scale * (hvd.rank() + 1.0))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(x, x[:, :1], epochs=2, callbacks=[broadcast], verbose=0)
    return hvd.rank(), hvd.size(), history.history["loss"], model.get_weights()[0].tolist()

first, second = hvd_keras.spark.run(train, kwargs={"scale": 1.0}, num_proc=2)
assert (first[:2], second[:2]) == ((0, 2), (1, 2))
assert first[3] == second[3] and len(first[2]) == 2
print("trained")
"""
WAIT = """
import hvd_keras.spark

def work(folder):
    import os, time
    import hvd_keras as hvd
    hvd.init()
    open(f"{folder}/{os.getpid()}.pid", "w").close()
    time.sleep(600)

try:
    hvd_keras.spark.run(work, (sys.argv[2],), num_proc=2)
except KeyboardInterrupt:
    tracker = spark.sparkContext.statusTracker()
    print("active jobs:", len(tracker.getActiveJobsIds()), flush=True)
    raise
"""


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    yield session
    session.stop()


def rank_processes():
    return [process.pid for process in running() if b"hvd_keras.runner" in process.words]


def test_a_cluster_of_two_workers_trains(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LAUNCH + TRAIN)
    done = subprocess.run(
        [sys.executable, str(script), "local-cluster[2,1,1024]"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0 and "trained" in done.stdout, done.stdout + done.stderr


def test_results_output_and_messages(spark, capfd):
    def work(word):
        import hvd_keras as hvd
        from hvd_keras.runner import log_to_driver

        hvd.init()
        print("printed by", hvd.rank())
        log_to_driver(f"{word} {hvd.rank()}")
        return hvd.rank() + 10

    assert runner.HorovodRunner(np=2).run(work, word="hello") == 10
    out = capfd.readouterr().out
    assert "hello 0" in out and "hello 1" in out and "printed by" not in out
    loud = runner.HorovodRunner(np=1, driver_log_verbosity="all")
    assert loud.run(work, word="alone") == 10
    assert "printed by 0" in capfd.readouterr().out


@pytest.mark.parametrize("linger", [0.0, 3.0], ids=["soon", "late"])
def test_the_first_traceback_comes_back_and_nothing_stays(spark, linger):
    """Also where the others, which fail over it, end long before the rank that has failed."""
    with pytest.raises(runner.RankFailedError) as caught:
        runner.HorovodRunner(np=2).run(make_failing(), linger=linger)
    check_failure_of_work(caught.value)
    assert not rank_processes()


def test_a_rank_that_is_killed(spark):
    def work():
        import hvd_keras as hvd

        hvd.init()
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(runner.RankFailedError, match="rank 0 of 2 has failed, with killed by SIGK"):
        runner.HorovodRunner(np=2).run(work)


def test_more_ranks_than_slots(spark):
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    with pytest.raises(ValueError, match="3 ranks were asked for, .* at most 2 tasks at once"):
        runner.HorovodRunner(np=3).run(print)
    # Spark itself would try for ten minutes: it is not even asked.
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == jobs


def test_what_cannot_be_sent(spark):
    def work():
        return spark.sparkContext

    with pytest.raises(ValueError, match="'spark', the Spark session. Make it inside"):
        runner.HorovodRunner(np=1).run(work)


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text(LAUNCH + WAIT)
    process = subprocess.Popen(
        [sys.executable, str(script), "local[2]", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 180
        while len(list(tmp_path.glob("*.pid"))) < 2 and process.poll() is None:
            assert time.monotonic() < until, "the ranks did not start"
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0 and "KeyboardInterrupt" in out, out
    assert "active jobs: 0" in out, out
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    until = time.monotonic() + 30
    while set(pids) & set(rank_processes()) and time.monotonic() < until:
        time.sleep(0.1)
    assert len(pids) == 2 and not set(pids) & set(rank_processes())
