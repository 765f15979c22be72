"""hvd_keras.ray.RayExecutor over several hosts: two nodes of this machine claim to be such.

The real MPI launcher starts the job, through the agents of hvd_keras.runner.mpi.
"""

import os
import signal
import sys
import time

import pytest

from hvd_keras import runner
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.mpi_find import find_mpi
from tests.processes import running
from tests.rank_functions import check_failure_of_work, make_failing, make_fit

pytest.importorskip("cloudpickle")
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
try:
    find_mpi([sys.executable], os.environ)
except LaunchError as error:
    pytest.skip(str(error), allow_module_level=True)

from hvd_keras.ray import RayExecutor  # noqa: E402

# Open MPI's own collectives take two hosts of one name for one.
ENV = {"OMPI_MCA_coll": "^han", "HVD_TEST_MARK": f"ray-hosts-{os.getpid()}"}
MARK = f"HVD_TEST_MARK={ENV['HVD_TEST_MARK']}".encode()


def children_of_jobs():
    """What workers of jobs over several hosts have started."""
    of_workers = [process for process in running() if MARK in process.environ]
    return {p.pid: p.line for p in of_workers if p.line and "ray" not in p.line.split()[0]}


@pytest.fixture(scope="module")
def executor():
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 << 20}
    head = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    there = {"HVD_HOST_ID": "elsewhere"}
    cluster.add_node(num_cpus=1, num_gpus=1, env_vars=there, **memory)
    ray.init(address=cluster.address, log_to_driver=False)
    settings = RayExecutor.create_settings(timeout_s=120, placement_group_timeout_s=60)
    executor = RayExecutor(settings, num_hosts=2, use_gpu=True)
    executor.start(extra_env_vars=ENV)
    yield executor
    executor.shutdown()
    assert nothing_runs()
    ray.shutdown()
    cluster.shutdown()


def nothing_runs():
    until = time.monotonic() + 30
    while children_of_jobs() and time.monotonic() < until:
        time.sleep(0.1)
    return not children_of_jobs()


def test_fit(executor):
    fit = make_fit()

    def train(epochs):
        import os

        import hvd_keras as hvd

        hvd.init()
        gpus = os.environ["CUDA_VISIBLE_DEVICES"]  # those of the host
        place = hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_size(), gpus
        return place, *fit(1.0, epochs)

    results = executor.run(train, (2,))
    assert [place for place, _, _ in results] == [(0, 0, 1, 2, "0"), (1, 0, 1, 2, "0")]
    assert all(len(losses) == 2 for _, losses, _ in results)
    assert all((a == b).all() for _, _, w in results for a, b in zip(w, results[0][2], strict=True))


def test_a_failure_and_a_new_meeting(executor):
    work = make_failing()
    before = executor.run(work, (None,))
    for culprit in (1, 0):
        with pytest.raises(runner.RankFailedError) as caught:
            executor.run(work, (culprit,))
        check_failure_of_work(caught.value, culprit)
    assert executor.run(work, (None,)) == before


def test_a_worker_that_is_killed(executor):
    def work():
        import os

        import hvd_keras as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    assert children_of_jobs()
    with pytest.raises(runner.RankFailedError, match="rank 1 of 2 .*its process has died"):
        executor.run(work)
    assert nothing_runs()


def test_without_mpi(executor):
    executor.shutdown()
    broken = {**ENV, "MPI4PY_LIBMPI": "/no/such/libmpi.so"}
    with pytest.raises(runner.RankFailedError, match="rank 0 of 2 .* not be started: .*mpi4py"):
        executor.start(extra_env_vars=broken)
