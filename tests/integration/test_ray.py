"""hvd_keras.ray.RayExecutor on a real Ray cluster of three nodes, all on this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_keras import runner
from tests.rank_functions import check_failure_of_work, make_failing, make_fit

pytest.importorskip("cloudpickle")
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

from hvd_keras.ray import RayExecutor  # noqa: E402

SETTINGS = RayExecutor.create_settings(timeout_s=120, placement_group_timeout_s=60)
MEMORY = {"object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": False, **MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, **MEMORY)
    cluster.add_node(num_cpus=1, **MEMORY)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def meet():
    import hvd_keras as hvd

    hvd.init()
    total = hvd.allreduce([hvd.rank() + 1.0], op=hvd.Sum, name="meeting")
    return hvd.rank(), hvd.local_rank(), hvd.size(), float(total[0])


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids):
    until = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    return not any(map(is_alive, pids))


@pytest.fixture(scope="class")
def pair(cluster):
    """Two workers for many tests."""
    executor = RayExecutor(SETTINGS, num_workers=2, use_gpu=True)
    executor.start(extra_env_vars={"OF_MINE": 5})
    yield executor
    executor.shutdown()


class TestTwoWorkers:
    """Many tests on the same two, which keep what they had."""

    def test_fit_returns_histories(self, pair):
        fit = make_fit()

        def train(scale, epochs=1):
            import hvd_keras as hvd

            hvd.init()
            return hvd.rank(), *fit(scale, epochs)

        first, second = pair.run(train, (1.0,), {"epochs": 2})
        assert (first[0], second[0]) == (0, 1) and first[1] != second[1]
        assert len(first[1]) == 2
        assert all((a == b).all() for a, b in zip(first[2], second[2], strict=True))
        first[2][0][0] = 0.0  # results are the caller's own, not read-only views of Ray's store

    def test_ranks_find_their_environment(self, pair):
        def work():
            import os

            return [os.environ.get(name) for name in ("OF_MINE", "CUDA_VISIBLE_DEVICES")]

        assert pair.run(meet) == [(0, 0, 2, 3.0), (1, 1, 2, 3.0)]
        # Both GPUs are visible to both, so that the local rank chooses among them.
        assert pair.run(work) == [["5", "0,1"], ["5", "0,1"]]
        assert ray.get(pair.run_remote(meet)) == [(0, 0, 2, 3.0), (1, 1, 2, 3.0)]

    def test_a_failure_comes_back_and_the_workers_can_go_on(self, pair):
        work = make_failing()
        before = pair.run(work, (None,))
        for culprit in (1, 0):
            with pytest.raises(runner.RankFailedError) as caught:
                pair.run(work, (culprit,))
            check_failure_of_work(caught.value, culprit)
            named = f"rank {culprit} of 2 (pid {before[culprit]}) has failed:"
            assert str(caught.value).startswith(named)
        assert pair.run(meet) == [(0, 0, 2, 3.0), (1, 1, 2, 3.0)]
        assert pair.run(work, (None,)) == before
        with pytest.raises(runner.RankFailedError, match="called sys.exit.3."):
            pair.run(sys.exit, (3,))

    def test_references_fail_together(self, pair):
        def work(culprit):
            import os

            import hvd_keras as hvd

            hvd.init()
            if hvd.rank() == culprit:
                raise KeyError("no such column")
            return os.getpid()

        pids = ray.get(pair.run_remote(work, (None,)))
        assert len(set(pids)) == 2
        # The other rank has returned its result.
        for ref in pair.run_remote(work, (1,)):
            with pytest.raises(runner.RankFailedError, match="rank 1 of 2 .*\n.*(\n.*)*KeyError"):
                ray.get(ref)
        assert pair.run(meet) == [(0, 0, 2, 3.0), (1, 1, 2, 3.0)]
        assert pair.run(work, (None,)) == pids

    def test_what_cannot_be_sent(self, pair):
        import threading

        import tensorflow as tf

        weights = tf.ones([2])
        with pytest.raises(ValueError, match="'weights', a TensorFlow tensor. Make it inside"):
            pair.run(lambda: weights)
        with pytest.raises(ValueError, match="cannot be pickled"):
            pair.run(print, (threading.Lock(),))
        with pytest.raises(runner.RankFailedError, match="function returns a TensorFlow tensor"):
            pair.run(lambda: __import__("tensorflow").ones([2]))
        with pytest.raises(ValueError, match="callbacks belong to elastic jobs"):
            pair.run(print, callbacks=[print])

    def test_objects_of_the_workers(self, pair):
        class Counter:
            def __init__(self, start, step=1):
                import hvd_keras as hvd

                hvd.init()  # all are made at the same time
                hvd.barrier()
                self.count, self.step = start + hvd.rank(), step

            def advance(self):
                self.count += self.step
                return self.count

        pair.shutdown()
        with pytest.raises(
            RuntimeError, match="no workers, since shutdown.. was called: call start"
        ):
            pair.run(print)
        pair.start(Counter, [10], {"step": 5}, {"OF_MINE": 5})
        with pytest.raises(RuntimeError, match="started already"):
            pair.start()
        assert pair.execute(lambda counter: counter.advance()) == [15, 16]
        assert pair.execute(lambda counter: counter.advance()) == [20, 21]
        assert pair.execute_single(lambda counter: counter.advance()) == 25
        with pytest.raises(
            runner.RankFailedError, match="rank 0 of 2 .*\n.*(\n.*)*ZeroDivisionError"
        ):
            pair.execute_single(lambda counter: 1 / 0)


def test_ranks_of_a_node_are_neighbours(cluster):
    def where():
        import ray as ray_of_rank

        return ray_of_rank.get_runtime_context().get_node_id()

    # The small node has no room for two, and the others hold two each: they share memory.
    executor = RayExecutor(SETTINGS, num_hosts=2, num_workers_per_host=2)
    executor.start()
    try:
        assert [place[:3] for place in executor.run(meet)] == [(r, r, 4) for r in range(4)]
        nodes = executor.run(where)
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    finally:
        executor.shutdown()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_workers": 6}, "6 workers of 1 CPU were asked for, .* room for 5 such workers even"),
        ({"num_workers": 1, "cpus_per_worker": 3}, "1 worker of 3 CPU .* room for 0"),
        ({"num_workers": 3, "use_gpu": True}, "3 workers of 1 CPU and 1 GPU .* room for 2"),
        ({"num_hosts": 4}, "1 worker of 1 CPU on each of 4 nodes .* room for 3 such nodes"),
    ],
)
def test_more_than_the_cluster_has(cluster, arguments, message):
    with pytest.raises(ValueError, match=message):
        RayExecutor(SETTINGS, **arguments).start()


def test_resources_that_others_use(cluster):
    settings = RayExecutor.create_settings(placement_group_timeout_s=1)
    first = RayExecutor(SETTINGS, num_workers=4)
    first.start()
    try:
        with pytest.raises(TimeoutError, match="no room for 2 workers of 1 CPU within 1 s"):
            RayExecutor(settings, num_workers=2).start()
    finally:
        first.shutdown()


def test_a_worker_that_is_killed_and_one_that_does_not_end(cluster, tmp_path):
    def work(folder):
        import os
        import time
        from pathlib import Path

        import hvd_keras as hvd

        hvd.init()
        (Path(folder) / str(os.getpid())).touch()
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)  # not in a collective: nothing tells it

    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    try:
        with pytest.raises(runner.RankFailedError, match="rank 1 of 2 .*its process has died"):
            executor.run(work, (str(tmp_path),))
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert len(pids) == 2 and gone(pids)
        with pytest.raises(RuntimeError, match="no workers, since rank 1 has failed"):
            executor.run(meet)
        executor.start()
        assert not set(executor.run(os.getpid)) & set(pids)
    finally:
        executor.shutdown()


def test_a_placement_group_around_the_executor(cluster):
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_PACK")
    strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)

    @ray.remote(num_cpus=1, scheduling_strategy=strategy)
    def inside(count):
        import hvd_keras.ray

        executor = hvd_keras.ray.RayExecutor(num_workers=count)
        executor.start()
        results = executor.run(meet)
        executor.shutdown()
        return results

    try:
        assert ray.get(inside.remote(1)) == [(0, 0, 1, 1.0)]
        with pytest.raises(ValueError, match="placement group that this runs in has room for 1"):
            ray.get(inside.remote(2))
        assert group.wait(10)  # it is still there
    finally:
        remove_placement_group(group)


def test_ctrl_c_ends_the_workers(cluster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
import ray
from hvd_keras.ray import RayExecutor

ray.init(address=sys.argv[1])
executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=2)
executor.start()

def work(folder):
    import os, time
    import hvd_keras as hvd
    hvd.init()
    open(f"{folder}/{os.getpid()}.pid", "w").close()
    time.sleep(600)

try:
    executor.run(work, sys.argv[2:])
except KeyboardInterrupt:
    try:
        executor.run(work, sys.argv[2:])
    except RuntimeError as error:
        print("afterwards:", error)
    raise
"""
    )
    process = subprocess.Popen(
        [sys.executable, str(script), cluster.address, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 240
        while len(pids := list(tmp_path.glob("*.pid"))) < 2 and process.poll() is None:
            assert time.monotonic() < until, "the ranks did not start"
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode not in (0, None) and "KeyboardInterrupt" in out, out
    assert "afterwards: there are no workers, since the job was interrupted" in out, out
    assert len(pids) == 2 and gone([int(path.stem) for path in pids])


def test_horovod_scripts_run_as_they_are(cluster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
import ray
from horovod.ray import RayExecutor
from horovod.runner.common.util.settings import Settings

def train():
    import horovod.tensorflow.keras as hvd
    hvd.init()
    return hvd.rank(), hvd.size()

ray.init(address=sys.argv[1])
executor = RayExecutor(Settings(verbose=2, timeout_s=120), num_workers=2, use_gpu=False)
executor.start()
print("found", executor.run(train))
executor.shutdown()
try:
    import horovod.ray
    horovod.ray.ElasticRayExecutor
except AttributeError as error:
    print(error)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.compat", str(script), cluster.address],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found [(0, 2), (1, 2)]" in done.stdout
    assert "'ElasticRayExecutor': the number of ranks is fixed; RayExecutor" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "num_workers is None and num_hosts is None; expected one of them"),
        ({"num_workers": 2, "num_hosts": 1}, "expected one of them"),
        ({"num_workers": 0}, "num_workers is 0; expected a number of at least 1"),
        ({"num_workers": 1.5}, "num_workers is 1.5; expected a whole number"),
        ({"num_hosts": 1, "num_workers_per_host": 0}, "num_workers_per_host is 0"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker is 0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "gpus_per_worker is 1, but use_gpu is not set"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0.5}, "a whole number of at least"),
        ({"min_workers": 1}, "min_workers is 1, but the number of workers is fixed"),
        (
            {"num_workers": 1, "settings": RayExecutor.create_settings(timeout_s="30 s")},
            "timeout_s",
        ),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RayExecutor(**arguments)
