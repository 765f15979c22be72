"""The makes of MPI: how each one's launcher is told what ``hvdrun`` was told.

One class for each; what they make of a :class:`MpiPlan` depends on nothing else. What a launcher is
always told, and why:

- no binding to cores: the threads of a rank would share one, and several "hosts" on one machine
  would all take the first ones;
- more ranks than cores are fine: the user said how many there are to be;
- to start all remote daemons itself, over ssh from this machine: the hosts of a cluster often
  cannot log in to each other;
- a directory that exists everywhere: the process around each rank enters the job's, and says
  clearly where it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from hvd_keras.launch.hosts import HostSlots

# Open MPI starts this many ssh at once, and refuses more hosts without a tree of them.
_CONCURRENT_SSH = 128


class MpiPlan(NamedTuple):
    """What is to be started, in hvdrun's terms.

    Attributes:
        launcher: path of mpirun, mpiexec or jsrun.
        num_proc: number of ranks.
        hosts: where; each has as many ranks as slots, until all are placed.
        command: what each rank runs.
        exported: names of the variables that the ranks get from this environment.
        interfaces: the only network interfaces to use; empty for MPI's choice.
        ssh_arguments: how ssh is called, beyond the host.
        tcp: whether to use TCP only, even where there is something faster.
        mpi_args: the user's own arguments of the launcher.
        binding_args: those about binding and mapping, instead of ours; empty for ours.
        is_root: whether this user is root.
        own_address: how the hosts reach this one; empty for the launcher's choice.
    """

    launcher: str
    num_proc: int
    hosts: Sequence[HostSlots]
    command: Sequence[str]
    exported: Sequence[str] = ()
    interfaces: Sequence[str] = ()
    ssh_arguments: Sequence[str] = ()
    tcp: bool = False
    mpi_args: Sequence[str] = ()
    binding_args: Sequence[str] = ()
    is_root: bool = False
    own_address: str = ""

    @property
    def host_list(self) -> str:
        """``a:2,b:2``."""
        return ",".join(f"{host}:{slots}" for host, slots in self.hosts)


class Mpi:
    """A make of MPI in one version.

    Attributes:
        make: its name.
        launchers: how its launcher may be called, the best name first.
        daemon: the program that its launcher starts on other hosts, from the same folder.
        attached: its launcher's arguments that keep the daemons children of what has started them.
    """

    make: ClassVar[str]
    launchers: ClassVar[tuple[str, ...]]
    daemon: ClassVar[str]
    attached: ClassVar[tuple[str, ...]] = ()

    def __init__(self, version: str) -> None:
        self.version = version

    @property
    def name(self) -> str:
        """Make and version."""
        return f"{self.make} {self.version}".strip()

    @property
    def major(self) -> int:
        """The first number of the version, 0 if there is none."""
        return int(re.match(r"\d*", self.version)[0] or 0)  # type: ignore[index]

    def arguments(self, plan: MpiPlan) -> list[str]:
        """The command line that starts the ranks."""
        raise NotImplementedError

    def variables(self, plan: MpiPlan) -> dict[str, str]:
        """The variables that the launcher has to have, beyond this environment."""
        return {}

    def rank_variables(self, plan: MpiPlan) -> dict[str, str]:
        """The variables that all ranks have to have."""
        variables = {"NCCL_SOCKET_IFNAME": ",".join(plan.interfaces)} if plan.interfaces else {}
        if plan.tcp:
            variables["NCCL_IB_DISABLE"] = "1"
        return variables

    def remote_agent(self, env: Mapping[str, str]) -> str | None:
        """The variable that makes the launcher start its daemons by something other than ssh."""
        raise NotImplementedError

    def shell_variables(self, program: str) -> dict[str, str]:
        """What makes the launcher start its daemons by ``program HOST COMMAND`` instead of ssh.

        With ``attached``, the program lives as long as the daemon that it has started.
        """
        raise NotImplementedError


class OpenMpi4(Mpi):
    """Open MPI 4 and earlier (ORTE)."""

    make = "Open MPI"
    launchers = ("mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi")
    daemon = "orted"
    attached = ("--leave-session-attached",)
    number_flag, hosts_flag, start_flag = "-np", "-H", "--mca"
    binding: tuple[str, ...] = ("--bind-to", "none", "--map-by", "slot")
    oversubscribe: tuple[str, ...] = ("--oversubscribe",)

    def arguments(self, plan: MpiPlan) -> list[str]:
        """See the base class."""
        return [
            plan.launcher,
            *(["--allow-run-as-root"] if plan.is_root else []),
            *(self.number_flag, str(plan.num_proc), self.hosts_flag, plan.host_list),
            *(plan.binding_args or self.binding),
            *self.oversubscribe,
            *_mca(self.start_flag, self._start(plan), plan),
            *_mca("--mca", self._network(plan), plan),
            *("--wdir", "/"),
            *(word for name in plan.exported for word in ("-x", name)),
            *plan.mpi_args,
            *plan.command,
        ]

    def _start(self, plan: MpiPlan) -> dict[str, str]:
        options = {"plm_rsh_no_tree_spawn": "true"}
        if len(plan.hosts) > _CONCURRENT_SSH:
            options["plm_rsh_num_concurrent"] = str(len(plan.hosts))
        if plan.ssh_arguments:
            options["plm_rsh_args"] = " ".join(plan.ssh_arguments)
        if plan.interfaces:
            options["oob_tcp_if_include"] = ",".join(plan.interfaces)
        return options

    def _network(self, plan: MpiPlan) -> dict[str, str]:
        # openib is what UCX replaces; where both are there, it only warns.
        options = {"pml": "ob1", "btl": "tcp,self,vader"} if plan.tcp else {"btl": "^openib"}
        if plan.interfaces:
            options["btl_tcp_if_include"] = ",".join(plan.interfaces)
        return options

    def remote_agent(self, env: Mapping[str, str]) -> str | None:
        """See the base class."""
        return _first_set(env, "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm")

    def shell_variables(self, program: str) -> dict[str, str]:
        """See the base class."""
        return {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": program}


class OpenMpi5(OpenMpi4):
    """Open MPI 5 and later, whose launcher is PRRTE with other names for much."""

    daemon = "prted"

    number_flag, hosts_flag, start_flag = "-n", "--host", "--prtemca"
    binding = ("--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE")
    oversubscribe: tuple[str, ...] = ()

    def _start(self, plan: MpiPlan) -> dict[str, str]:
        options = {"plm_ssh_no_tree_spawn": "1"}
        if len(plan.hosts) > _CONCURRENT_SSH:
            options["plm_ssh_num_concurrent"] = str(len(plan.hosts))
        if plan.ssh_arguments:
            options["plm_ssh_args"] = " ".join(plan.ssh_arguments)
        if plan.interfaces:
            options["prte_if_include"] = ",".join(plan.interfaces)
        return options

    def _network(self, plan: MpiPlan) -> dict[str, str]:
        options = {"pml": "ob1", "btl": "tcp,self,sm"} if plan.tcp else {}
        if plan.interfaces:
            options["btl_tcp_if_include"] = ",".join(plan.interfaces)
        return options

    def remote_agent(self, env: Mapping[str, str]) -> str | None:
        """See the base class."""
        return _first_set(
            env, "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm", "OMPI_MCA_plm"
        )

    def shell_variables(self, program: str) -> dict[str, str]:
        """See the base class."""
        return {"PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": program}


class Mpich(Mpi):
    """MPICH, whose launcher is hydra; MVAPICH and others of its kind."""

    make = "MPICH"
    launchers: ClassVar[tuple[str, ...]] = (
        "mpiexec.hydra",
        "mpiexec",
        "mpirun",
        "mpiexec.mpich",
        "mpirun.mpich",
    )
    daemon = "hydra_pmi_proxy"

    def arguments(self, plan: MpiPlan) -> list[str]:
        """See the base class."""
        number = ("-n", str(plan.num_proc), "-hosts", plan.host_list)
        return [plan.launcher, *number, *self._options(plan), *plan.command]

    def _options(self, plan: MpiPlan) -> list[str]:
        return [
            *(plan.binding_args or self._binding()),
            *(("-iface", plan.interfaces[0]) if plan.interfaces else ()),
            *(("-localhost", plan.own_address) if plan.own_address else ()),
            *("-wdir", "/", "-genvlist", ",".join(plan.exported)),
            *plan.mpi_args,
        ]

    def _binding(self) -> tuple[str, ...]:
        return ("-bind-to", "none")

    def variables(self, plan: MpiPlan) -> dict[str, str]:
        """See the base class."""
        if not plan.ssh_arguments:
            return {}
        return {"HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(plan.ssh_arguments)}

    def rank_variables(self, plan: MpiPlan) -> dict[str, str]:
        """See the base class. MPICH is built on UCX, libfabric or both."""
        variables = super().rank_variables(plan)
        if plan.interfaces:
            variables["UCX_NET_DEVICES"] = ",".join(plan.interfaces)
            variables["FI_TCP_IFACE"] = plan.interfaces[0]
        if plan.tcp:
            variables.update(UCX_TLS="tcp,self,sm", FI_PROVIDER="tcp")
        return variables

    def remote_agent(self, env: Mapping[str, str]) -> str | None:
        """See the base class."""
        return _first_set(env, "HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER")

    def shell_variables(self, program: str) -> dict[str, str]:
        """See the base class."""
        return {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": program}


class IntelMpi(Mpich):
    """Intel MPI, whose launcher is a hydra of its own."""

    make = "Intel MPI"
    # Its mpirun is a script that calls the first mpiexec.hydra on PATH, which may be another's.
    launchers = ("mpiexec.hydra", "mpiexec")
    daemon = "hydra_bstrap_proxy"

    def arguments(self, plan: MpiPlan) -> list[str]:
        """See the base class. ``-hosts`` takes no slots here."""
        first = plan.hosts[0].slots
        *others, last = (slots for _, slots in plan.hosts)
        if all(slots == first for slots in others) and last <= first:
            hosts = ",".join(host for host, _ in plan.hosts)
            number = ("-n", str(plan.num_proc), "-ppn", str(first), "-hosts", hosts)
            return [plan.launcher, *number, *self._options(plan), *plan.command]
        sets: list[str] = []
        for host, slots in plan.hosts:
            sets += [":"] if sets else []
            sets += ["-n", str(slots), "-host", host, *plan.command]
        return [plan.launcher, *self._options(plan), *sets]

    def _binding(self) -> tuple[str, ...]:
        return ("-genv", "I_MPI_PIN", "0")

    def variables(self, plan: MpiPlan) -> dict[str, str]:
        """See the base class."""
        # From 16 hosts on, they would start each other's daemons.
        variables = {"I_MPI_HYDRA_BRANCH_COUNT": str(max(2, len(plan.hosts)))}
        if plan.ssh_arguments:
            variables["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] = " ".join(plan.ssh_arguments)
        return variables

    def rank_variables(self, plan: MpiPlan) -> dict[str, str]:
        """See the base class. Intel MPI knows libfabric only."""
        variables = super().rank_variables(plan)
        variables.pop("UCX_TLS", None)
        variables.pop("UCX_NET_DEVICES", None)
        return variables

    def remote_agent(self, env: Mapping[str, str]) -> str | None:
        """See the base class."""
        return _first_set(env, "I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_BOOTSTRAP")

    def shell_variables(self, program: str) -> dict[str, str]:
        """See the base class."""
        return {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": program}


class JsRun(Mpi):
    """IBM's jsrun: the hosts come from LSF, and nothing is started by ssh."""

    make = "jsrun"
    launchers = ("jsrun",)
    daemon = ""

    def arguments(self, plan: MpiPlan) -> list[str]:
        """One resource set with the whole host for each host."""
        binding = plan.binding_args or ("--bind", "none")
        per_host = max(slots for _, slots in plan.hosts)
        return [
            plan.launcher,
            *("--np", str(plan.num_proc), "--nrs", str(-(-plan.num_proc // per_host))),
            *("--rs_per_host", "1", "--tasks_per_rs", str(min(per_host, plan.num_proc))),
            *("--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS"),
            *binding,
            *("--chdir", "/"),
            *(word for name in plan.exported for word in ("--env", name)),
            *plan.mpi_args,
            *plan.command,
        ]

    def remote_agent(self, env: Mapping[str, str]) -> str | None:
        """See the base class."""
        return "jsrun"


_VERSIONS: tuple[tuple[str, type[Mpi]], ...] = (
    (r"Intel\(R\) MPI Library.*?(\d+(?:\.\d+)*)", IntelMpi),
    (r"(?:Open MPI\)?|OpenRTE\)?) v?(\d+(?:\.\d+)*)", OpenMpi4),
    (r"(?:HYDRA build details:\s+Version:|MPICH Version:)\s*(\d+(?:\.\d+)*)", Mpich),
)


def identify(text: str) -> Mpi | None:
    """The MPI in what its launcher says to ``--version``, or its library of itself."""
    for pattern, make in _VERSIONS:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            found = make(match[1])
            return OpenMpi5(match[1]) if make is OpenMpi4 and found.major >= 5 else found
    return None


def _mca(flag: str, options: Mapping[str, str], plan: MpiPlan) -> list[str]:
    # The user's own come instead of ours: Open MPI refuses a parameter that is there twice.
    mine = {name: value for name, value in options.items() if name not in plan.mpi_args}
    return [word for name, value in mine.items() for word in (flag, name, value)]


def _first_set(env: Mapping[str, str], *names: str) -> str | None:
    return next((name for name in names if env.get(name)), None)
