"""Finding the program of a job, and saying clearly why it cannot be run."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from hvd_keras.launch.errors import LaunchError


def find_program(command: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """Returns the path, possibly relative to ``cwd``, of the program that ``command`` starts.

    Raises:
        LaunchError: there is no such program, or it cannot be executed.
    """
    if not command or not command[0]:
        raise LaunchError(
            "no command was given: write what each rank runs last, "
            "for example hvdrun -np 2 python train.py."
        )
    name = command[0]
    if os.sep in name:
        _check_file(name, os.path.join(cwd, name))
        return name
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found:
        return os.path.join(cwd, found)
    raise LaunchError(_not_on_path(name, os.path.join(cwd, name)))


def _not_on_path(name: str, in_cwd: str) -> str:
    message = f"there is no command {name!r} on PATH"
    if os.path.isfile(in_cwd):
        how = f"python {name}" if name.endswith(".py") else f"./{name}"
        return f"{message}; to run the file of that name in this directory, write {how}."
    if name in ("python", "python3"):
        return f"{message}; this hvdrun belongs to {sys.executable}, which you can write instead."
    return f"{message}, nor a file of that name in this directory."


def _check_file(name: str, path: str) -> None:
    if not os.path.exists(path):
        raise LaunchError(f"the command {name!r} does not exist.")
    if os.path.isdir(path):
        raise LaunchError(f"the command {name!r} is a directory.")
    if not os.access(path, os.X_OK):
        raise LaunchError(f"{name!r} is not executable: {_remedy(name)}")


def _remedy(name: str) -> str:
    if name.endswith(".py"):
        return f"put the interpreter before it, as in hvdrun ... python {name}."
    return f"run chmod +x {name}, or put its interpreter before it."


def explain_exec_error(name: str, path: str, error: OSError) -> str:
    """One sentence for an ``exec`` of ``path`` that failed after the checks above passed."""
    if error.errno == errno.ENOENT:
        return f"{name!r} names an interpreter in its first line (#!) that does not exist."
    if error.errno == errno.ENOEXEC:
        return (
            f"{name!r} is neither a program for this machine nor a script with an interpreter "
            f"in its first line (#!): put the interpreter before it."
        )
    return f"{name!r} ({path}) could not be started: {error.strerror}."
