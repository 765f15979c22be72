"""Schedulers and launchers, by the variables that their manuals document."""

from __future__ import annotations

import argparse

import pytest

from hvd_keras.launch.cli import choose_hosts
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.hosts import HostSlots
from hvd_keras.launch.schedulers import (
    Placement,
    expand_counts,
    expand_nodes,
    find_allocation,
    find_placement,
)

SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]"}
SRUN = {
    **SLURM,
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        (OPEN_MPI, Placement(3, 4, 1, 2)),
        (HYDRA, Placement(2, 3, 0, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, Placement(2, 3)),
        (SRUN, Placement(5, 6, 1, 2)),
        # mpirun inside an allocation: the rank is mpirun's.
        ({**SRUN, **OPEN_MPI}, Placement(3, 4, 1, 2)),
        ({**SRUN, **HYDRA}, Placement(2, 3, 0, 1)),
        # The script of sbatch is not a rank, though it has a SLURM_PROCID.
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
        # The shell of salloc is started by a step of its own, whose id is no number.
        ({**SRUN, "SLURM_STEP_ID": "interactive"}, None),
        (
            {
                "JSM_NAMESPACE_RANK": "1",
                "JSM_NAMESPACE_SIZE": "2",
                "JSM_NAMESPACE_LOCAL_RANK": "0",
                "JSM_NAMESPACE_LOCAL_SIZE": "1",
            },
            Placement(1, 2, 0, 1),
        ),
        (
            {
                "MV2_COMM_WORLD_RANK": "1",
                "MV2_COMM_WORLD_SIZE": "2",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
                "MV2_COMM_WORLD_LOCAL_SIZE": "2",
            },
            Placement(1, 2, 1, 2),
        ),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "4"}, None),
    ],
)
def test_who_a_rank_is(env, expected):
    assert find_placement(env) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "4(x2)"}, ("Slurm", [("n1", 4), ("n2", 4)])),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "4,1"}, ("Slurm", [("n1", 4), ("n2", 1)])),
        (
            {**SLURM, "SLURM_JOB_CPUS_PER_NODE": "32(x2)", "SLURM_CPUS_PER_TASK": "8"},
            ("Slurm", [("n1", 4), ("n2", 4)]),
        ),
        (SLURM, ("Slurm", [("n1", 1), ("n2", 1)])),
        ({"SLURM_JOB_NODELIST": "n1"}, None),
        (
            {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "a 2 b 3", "LSB_HOSTS": "a"},
            ("LSF", [("a", 2), ("b", 3)]),
        ),
        ({"LSB_JOBID": "9", "LSB_HOSTS": "a a b"}, ("LSF", [("a", 2), ("b", 1)])),
        (
            {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "batch 1 b 3", "CSM_ALLOCATION_ID": "1"},
            ("LSF", [("b", 3)]),
        ),
        ({"LSB_HOSTS": "a a b"}, None),
        ({"PBS_NODEFILE": "/no/such"}, None),
    ],
)
def test_the_hosts_of_an_allocation(env, expected):
    assert find_allocation(env) == expected


def test_files_of_lsf_and_pbs(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a\na\n\nb rank 1\n")
    hosts = [HostSlots("a", 2), HostSlots("b", 1)]
    lsf = {"LSB_JOBID": "1", "LSB_DJOB_RANKFILE": str(path), "LSB_MCPU_HOSTS": "z 9"}
    assert find_allocation(lsf) == ("LSF", hosts)
    assert find_allocation({"PBS_JOBID": "1", "PBS_NODEFILE": str(path)}) == ("PBS", hosts)
    path.write_text("\n")
    with pytest.raises(LaunchError, match="names no host"):
        find_allocation({"PBS_JOBID": "1", "PBS_NODEFILE": str(path)})
    with pytest.raises(LaunchError, match="PBS_NODEFILE.*No such file"):
        find_allocation({"PBS_JOBID": "1", "PBS_NODEFILE": "/no/such"})


@pytest.mark.parametrize(
    "env",
    [
        {**SLURM, "SLURM_TASKS_PER_NODE": "4"},
        {**SLURM, "SLURM_TASKS_PER_NODE": "4(y2)"},
        {**SLURM, "SLURM_JOB_NODELIST": "n[1-"},
        {**SLURM, "SLURM_JOB_NODELIST": "n[2-1]"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 2 b"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a b"},
    ],
)
def test_a_malformed_allocation_is_told_with_the_remedy(env):
    with pytest.raises(LaunchError, match="-H"):
        find_allocation(env)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12]-ib", ["n08-ib", "n09-ib", "n10-ib", "n12-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("login,n[1,3],x-1.y", ["login", "n1", "n3", "x-1.y"]),
    ],
)
def test_node_lists_of_slurm(text, expected):
    assert expand_nodes(text) == expected


def test_counts_of_slurm():
    assert expand_counts("2(x3),1", "X") == [2, 2, 2, 1]


def _chosen(env, **options):
    names = ("hosts", "hostfile", "num_proc", "jsrun")
    return choose_hosts(argparse.Namespace(**{name: options.get(name) for name in names}), env)


def test_hosts_and_ranks_come_from_the_allocation():
    env = {**SLURM, "SLURM_TASKS_PER_NODE": "4,2"}
    hosts = [HostSlots("n1", 4), HostSlots("n2", 2)]
    assert _chosen(env) == (hosts, 6)
    assert _chosen(env, num_proc=5) == (hosts, 5)
    assert _chosen(env, num_proc=2, hosts="localhost:2") == ([HostSlots("localhost", 2)], 2)
    with pytest.raises(LaunchError, match="only 6 slots"):
        _chosen(env, num_proc=7)


def test_an_allocation_of_this_machine_alone_limits_nothing():
    env = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "localhost 2"}
    assert _chosen(env) == ([HostSlots("localhost", 2)], 2)
    assert _chosen(env, num_proc=3) == ([HostSlots("localhost", 3)], 3)


def test_without_an_allocation_np_is_needed():
    assert _chosen({}, num_proc=2) == ([HostSlots("localhost", 2)], 2)
    with pytest.raises(LaunchError, match="-np N"):
        _chosen({})
