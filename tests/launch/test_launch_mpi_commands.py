"""The exact command line and variables for each make of MPI."""

from __future__ import annotations

import pytest

from hvd_keras.launch import environment
from hvd_keras.launch.hosts import HostSlots
from hvd_keras.launch.mpi_makes import (
    IntelMpi,
    JsRun,
    Mpich,
    MpiPlan,
    OpenMpi4,
    OpenMpi5,
    identify,
)

PLAIN = MpiPlan("/x/mpirun", 3, [HostSlots("a", 2), HostSlots("b", 1)], ["python", "t.py"])
FULL = PLAIN._replace(
    exported=["A", "B"],
    interfaces=["eth0", "eth1"],
    ssh_arguments=["-p", "22"],
    tcp=True,
    mpi_args=["--quiet"],
    binding_args=["--bind-to", "core"],
    is_root=True,
)


def _words(text: str) -> list[str]:
    return text.split()


def test_open_mpi_4():
    assert OpenMpi4("4.1.4").arguments(PLAIN) == _words(
        "/x/mpirun -np 3 -H a:2,b:1 --bind-to none --map-by slot --oversubscribe "
        "--mca plm_rsh_no_tree_spawn true --mca btl ^openib --wdir / python t.py"
    )
    assert OpenMpi4("4.1.4").arguments(FULL) == [
        *_words("/x/mpirun --allow-run-as-root -np 3 -H a:2,b:1 --bind-to core --oversubscribe"),
        *("--mca", "plm_rsh_no_tree_spawn", "true", "--mca", "plm_rsh_args", "-p 22"),
        *("--mca", "oob_tcp_if_include", "eth0,eth1", "--mca", "pml", "ob1"),
        *("--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", "eth0,eth1"),
        *_words("--wdir / -x A -x B --quiet python t.py"),
    ]


def test_open_mpi_5_has_other_names():
    assert OpenMpi5("5.0.11").arguments(PLAIN) == _words(
        "/x/mpirun -n 3 --host a:2,b:1 --bind-to none --map-by slot:OVERSUBSCRIBE "
        "--prtemca plm_ssh_no_tree_spawn 1 --wdir / python t.py"
    )
    assert OpenMpi5("5.0.11").arguments(FULL) == [
        *_words("/x/mpirun --allow-run-as-root -n 3 --host a:2,b:1 --bind-to core"),
        *("--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "plm_ssh_args", "-p 22"),
        *("--prtemca", "prte_if_include", "eth0,eth1", "--mca", "pml", "ob1"),
        *("--mca", "btl", "tcp,self,sm", "--mca", "btl_tcp_if_include", "eth0,eth1"),
        *_words("--wdir / -x A -x B --quiet python t.py"),
    ]


def test_a_parameter_of_the_users_comes_instead_of_ours():
    plan = PLAIN._replace(mpi_args=["--mca", "btl", "tcp,self"])
    arguments = OpenMpi4("4.1.4").arguments(plan)
    assert arguments.count("btl") == 1
    assert "^openib" not in arguments


def test_open_mpi_starts_ssh_to_all_of_many_hosts_at_once():
    hosts = [HostSlots(f"n{at}", 1) for at in range(200)]
    arguments = OpenMpi4("4.1.4").arguments(PLAIN._replace(hosts=hosts))
    assert arguments[arguments.index("plm_rsh_num_concurrent") + 1] == "200"


def test_mpich():
    mpich = Mpich("4.0.2")
    assert mpich.arguments(PLAIN._replace(exported=["A", "B"])) == _words(
        "/x/mpirun -n 3 -hosts a:2,b:1 -bind-to none -wdir / -genvlist A,B python t.py"
    )
    assert mpich.arguments(FULL) == _words(
        "/x/mpirun -n 3 -hosts a:2,b:1 --bind-to core -iface eth0 -wdir / -genvlist A,B --quiet "
        "python t.py"
    )
    assert mpich.variables(PLAIN) == {}
    assert mpich.variables(FULL) == {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 22"}
    assert mpich.rank_variables(FULL) == {
        "NCCL_SOCKET_IFNAME": "eth0,eth1",
        "NCCL_IB_DISABLE": "1",
        "UCX_NET_DEVICES": "eth0,eth1",
        "FI_TCP_IFACE": "eth0",
        "UCX_TLS": "tcp,self,sm",
        "FI_PROVIDER": "tcp",
    }


def test_intel_mpi():
    intel = IntelMpi("2021.18.1")
    assert intel.arguments(PLAIN._replace(exported=["A"])) == _words(
        "/x/mpirun -n 3 -ppn 2 -hosts a,b -genv I_MPI_PIN 0 -wdir / -genvlist A python t.py"
    )
    uneven = PLAIN._replace(hosts=[HostSlots("a", 1), HostSlots("b", 2)], exported=["A"])
    assert intel.arguments(uneven) == _words(
        "/x/mpirun -genv I_MPI_PIN 0 -wdir / -genvlist A "
        "-n 1 -host a python t.py : -n 2 -host b python t.py"
    )
    assert intel.variables(FULL) == {
        "I_MPI_HYDRA_BRANCH_COUNT": "2",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-p 22",
    }
    assert intel.rank_variables(FULL) == {
        "NCCL_SOCKET_IFNAME": "eth0,eth1",
        "NCCL_IB_DISABLE": "1",
        "FI_TCP_IFACE": "eth0",
        "FI_PROVIDER": "tcp",
    }


def test_jsrun():
    hosts = [HostSlots("a", 2), HostSlots("b", 2)]
    plan = PLAIN._replace(launcher="jsrun", num_proc=4, hosts=hosts, exported=["A"])
    assert JsRun("").arguments(plan) == _words(
        "jsrun --np 4 --nrs 2 --rs_per_host 1 --tasks_per_rs 2 --cpu_per_rs ALL_CPUS "
        "--gpu_per_rs ALL_GPUS --bind none --chdir / --env A python t.py"
    )


@pytest.mark.parametrize(
    ("text", "make", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://x", OpenMpi4, "4.1.4"),
        ("mpiexec (OpenRTE) 4.1.4\n", OpenMpi4, "4.1.4"),
        ("mpirun (Open MPI) 5.0.11\n", OpenMpi5, "5.0.11"),
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution", OpenMpi5, "5.0.11"),
        ("HYDRA build details:\n    Version:                  4.0.2\n", Mpich, "4.0.2"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri", Mpich, "5.0.2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626",
            IntelMpi,
            "2021.18.1",
        ),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", IntelMpi, "2021.18.1"),
    ],
)
def test_an_mpi_is_known_by_what_it_says_of_itself(text, make, version):
    found = identify(text)
    assert type(found) is make
    assert found.version == version


def test_what_is_no_mpi_is_not_known():
    assert identify("mpirun: command not found") is None


def test_what_belongs_to_one_host_or_launcher_is_not_exported():
    env = {
        "PATH": "/bin",
        "HVD_EXPECTED_SIZE": "2",
        "SLURM_JOB_ID": "7",
        "BASH_FUNC_ml%%": "() { :; }",
        "BASH_FUNC_ml": "x",
        "OLDPWD": "/",
        "SSH_CONNECTION": "x",
        "CUDA_VISIBLE_DEVICES": "0",
        "HIP_CUDA_VISIBLE_DEVICES": "0",
        "_HOROVOD_SECRET_KEY": "x",
        "OMPI_COMM_WORLD_RANK": "1",
        "PMI_FD": "3",
        "SLURM_PROCID": "0",
        "SLURM_STEP_ID": "0",
        "TWO_LINES": "a\nb",
        "a.b": "1",
    }
    assert environment.exported_names(env) == ["HVD_EXPECTED_SIZE", "PATH", "SLURM_JOB_ID"]
