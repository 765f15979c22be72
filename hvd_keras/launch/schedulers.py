"""What the variables of schedulers and MPI launchers say: which hosts a job has, and who a rank is.

One class for each. All are functions of the variables that they are given, as their manuals
describe them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.hosts import HostSlots


class Placement(NamedTuple):
    """Who a process is; ``local_rank`` and ``local_size`` are None where nobody says it."""

    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None


class Scheduler:
    """A scheduler or launcher.

    Attributes:
        name: its name.
        rank, size, local_rank, local_size: names of the variables that hold these in a process
            that it started; the first of each that is set counts.
    """

    name: ClassVar[str]
    rank: ClassVar[tuple[str, ...]] = ()
    size: ClassVar[tuple[str, ...]] = ()
    local_rank: ClassVar[tuple[str, ...]] = ()
    local_size: ClassVar[tuple[str, ...]] = ()

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        """Who this process is, if it is one of those that this launcher started."""
        rank, size = _first(env, self.rank), _first(env, self.size)
        if rank is None or size is None:
            return None
        return Placement(rank, size, _first(env, self.local_rank), self._local_size(env))

    def _local_size(self, env: Mapping[str, str]) -> int | None:
        return _first(env, self.local_size)

    def allocation(self, env: Mapping[str, str]) -> list[HostSlots] | None:
        """The hosts and slots of the allocation that this process runs in, if there is one.

        Raises:
            LaunchError: there is one, but what it says of its hosts is malformed.
        """
        return None


class OpenMpi(Scheduler):
    """Open MPI's mpirun."""

    name = "Open MPI"
    rank = ("OMPI_COMM_WORLD_RANK",)
    size = ("OMPI_COMM_WORLD_SIZE",)
    local_rank = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    local_size = ("OMPI_COMM_WORLD_LOCAL_SIZE",)


class JsRun(Scheduler):
    """IBM's jsrun, on LSF."""

    name = "jsrun"
    rank = ("JSM_NAMESPACE_RANK",)
    size = ("JSM_NAMESPACE_SIZE",)
    local_rank = ("JSM_NAMESPACE_LOCAL_RANK",)
    local_size = ("JSM_NAMESPACE_LOCAL_SIZE",)


class Mvapich(Scheduler):
    """MVAPICH2's mpirun_rsh."""

    name = "MVAPICH2"
    rank = ("MV2_COMM_WORLD_RANK",)
    size = ("MV2_COMM_WORLD_SIZE",)
    local_rank = ("MV2_COMM_WORLD_LOCAL_RANK",)
    local_size = ("MV2_COMM_WORLD_LOCAL_SIZE",)


class Hydra(Scheduler):
    """The mpiexec of MPICH and Intel MPI, and whatever else speaks PMI 1."""

    name = "hydra"
    rank = ("PMI_RANK",)
    size = ("PMI_SIZE",)
    local_rank = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    local_size = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")


class Slurm(Scheduler):
    """Slurm: salloc and sbatch give an allocation, srun starts ranks (PMI2, PMIx)."""

    name = "Slurm"
    rank = ("SLURM_PROCID",)
    size = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    local_rank = ("SLURM_LOCALID",)

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        """See the base class. The script of sbatch has a SLURM_PROCID, too, but no step."""
        if not env.get("SLURM_STEP_ID", "").isdigit():
            return None
        return super().placement(env)

    def _local_size(self, env: Mapping[str, str]) -> int | None:
        tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
        node = _first(env, ("SLURM_NODEID",))
        if not tasks or node is None:
            return None
        counts = expand_counts(tasks, "SLURM_STEP_TASKS_PER_NODE")
        return counts[node] if node < len(counts) else None

    def allocation(self, env: Mapping[str, str]) -> list[HostSlots] | None:
        """The nodes, with their tasks; else with their CPUs over the CPUs of a task."""
        nodes = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
        if "SLURM_JOB_ID" not in env or not nodes:
            return None
        hosts = expand_nodes(nodes)
        # SLURM_TASKS_PER_NODE is set without a wish of the user's, too: to the CPUs.
        for name in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"):
            if env.get(name):
                counts = expand_counts(env[name], name)
                if name.endswith("CPUS_PER_NODE"):
                    each = _first(env, ("SLURM_CPUS_PER_TASK",)) or 1
                    counts = [max(1, count // each) for count in counts]
                break
        else:
            counts = [1] * len(hosts)
        if len(counts) != len(hosts):
            raise LaunchError(
                f"Slurm's variables contradict each other: {nodes!r} are {len(hosts)} nodes, but "
                f"{name}={env[name]!r} are {len(counts)}; name the hosts with -H."
            )
        return [HostSlots(host, count) for host, count in zip(hosts, counts, strict=True)]


class Lsf(Scheduler):
    """LSF: bsub gives an allocation."""

    name = "LSF"

    def allocation(self, env: Mapping[str, str]) -> list[HostSlots] | None:
        """The hosts of the rank file, else of LSB_MCPU_HOSTS, else of LSB_HOSTS.

        With jsrun (IBM's CSM) the first host is the batch node, on which no rank may run.
        """
        if "LSB_JOBID" not in env:
            return None
        counted = env.get("LSB_MCPU_HOSTS", "").split()
        if env.get("LSB_DJOB_RANKFILE"):
            hosts = count_lines("LSB_DJOB_RANKFILE", env["LSB_DJOB_RANKFILE"])
        elif counted:
            if len(counted) % 2 or not all(_is_number(text) for text in counted[1::2]):
                raise LaunchError(
                    f"LSB_MCPU_HOSTS is {env['LSB_MCPU_HOSTS']!r}; expected pairs of a host and "
                    "its slots. Name the hosts with -H."
                )
            hosts = _sum(zip(counted[::2], map(int, counted[1::2]), strict=True))
        elif env.get("LSB_HOSTS"):
            hosts = _sum((host, 1) for host in env["LSB_HOSTS"].split())
        else:
            return None
        if "CSM_ALLOCATION_ID" in env and len(hosts) > 1:
            hosts = hosts[1:]
        return hosts


class Pbs(Scheduler):
    """PBS and Torque: qsub gives an allocation."""

    name = "PBS"

    def allocation(self, env: Mapping[str, str]) -> list[HostSlots] | None:
        """The hosts of PBS_NODEFILE: one line for each slot."""
        if not env.get("PBS_NODEFILE") or "PBS_JOBID" not in env:
            return None
        return count_lines("PBS_NODEFILE", env["PBS_NODEFILE"])


# Open MPI before Slurm and PMI: its mpirun may run inside an allocation of Slurm's, whose
# variables the ranks then have as well; and so may hydra.
LAUNCHERS: tuple[Scheduler, ...] = (OpenMpi(), JsRun(), Mvapich(), Hydra(), Slurm())
ALLOCATORS: tuple[Scheduler, ...] = (Lsf(), Slurm(), Pbs())


def find_placement(env: Mapping[str, str]) -> Placement | None:
    """Who this process is, by the first launcher that says it."""
    found = (launcher.placement(env) for launcher in LAUNCHERS)
    return next((placement for placement in found if placement is not None), None)


def find_allocation(env: Mapping[str, str]) -> tuple[str, list[HostSlots]] | None:
    """The scheduler in whose allocation this process runs, and the hosts; None outside of any."""
    for scheduler in ALLOCATORS:
        hosts = scheduler.allocation(env)
        if hosts:
            return scheduler.name, hosts
    return None


def expand_nodes(text: str) -> list[str]:
    """The hosts of Slurm's short form, such as ``n[1-3,07-08]-ib,login``.

    Raises:
        LaunchError: the text is malformed.
    """
    entries = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    hosts = [host for entry in entries for host in _expand_entry(entry, text)]
    if not hosts or ",".join(entries) != text:
        raise _bad_nodes(text)
    return hosts


def _expand_entry(entry: str, text: str) -> list[str]:
    head, bracket, rest = entry.partition("[")
    if not bracket:
        return [entry]
    inside, _, tail = rest.partition("]")
    middles = []
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise _bad_nodes(text)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) > 10**5:
            raise _bad_nodes(text)
        middles += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    tails = _expand_entry(tail, text)
    return [head + middle + end for middle in middles for end in tails]


def _bad_nodes(text: str) -> LaunchError:
    return LaunchError(
        f"SLURM_JOB_NODELIST is {text!r}; expected hosts such as n[1-3,7],login. "
        "Name the hosts with -H."
    )


def expand_counts(text: str, name: str) -> list[int]:
    """The numbers of Slurm's short form: ``2(x3),1`` are 2, 2, 2 and 1.

    Raises:
        LaunchError: the text, of the variable ``name``, is malformed.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if not match:
            raise LaunchError(
                f"{name} is {text!r}; expected numbers such as 2(x3),1. Name the hosts with -H."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def count_lines(name: str, path: str) -> list[HostSlots]:
    """The hosts of a file with one line for each slot, whose first word is the host.

    Raises:
        LaunchError: the file, which the variable ``name`` names, cannot be read or is empty.
    """
    try:
        with open(path, encoding="utf-8") as file:
            words = [line.split() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{name}: {error}. Name the hosts with -H.") from error
    hosts = _sum((line[0], 1) for line in words if line)
    if not hosts:
        raise LaunchError(f"{name}: the file {path} names no host. Name the hosts with -H.")
    return hosts


def _sum(slots: Iterable[tuple[str, int]]) -> list[HostSlots]:
    total: dict[str, int] = {}
    for host, count in slots:
        total[host] = total.get(host, 0) + count
    return [HostSlots(host, count) for host, count in total.items()]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 7


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    texts = (env.get(name, "") for name in names)
    return next((int(text) for text in texts if _is_number(text)), None)
