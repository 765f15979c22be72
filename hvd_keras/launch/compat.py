"""``hvdrun --compat``: commands in which the alias of ``horovod`` would not be found.

The ranks find it through PYTHONPATH, which reaches every Python they run, through shell scripts
and wrappers too. Two things come before PYTHONPATH, and are told here where the command shows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hvd_keras.launch.errors import LaunchError

# Options of python that take a value in the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def require_alias_is_seen(command: Sequence[str], cwd: str) -> None:
    """Raises LaunchError if a Python that the command names would not import the alias."""
    if not command or not re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        return
    if "hvd_keras.compat" in command:
        return  # which needs no help
    folder = cwd
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            folder = cwd if word == "-" else os.path.dirname(os.path.join(cwd, word))
            break
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("--"):
            options = re.split("[cmWX]", word[1:])[0]
            for option in set("IE") & set(options):
                raise LaunchError(
                    f"--compat does not work with python -{option}, which ignores PYTHONPATH; "
                    f"leave it out, or write python -{option} -m hvd_keras.compat "
                    f"{_rest(command, word)}"
                )
            if set("cm") & set(word[1:]):
                break
    if os.path.isdir(os.path.join(folder, "horovod")):
        raise LaunchError(
            f"--compat: python would import the folder {os.path.join(folder, 'horovod')}, which "
            "comes before everything else; start the job in another directory, or write "
            f"{command[0]} -m hvd_keras.compat {' '.join(command[1:])}"
        )


def _rest(command: Sequence[str], word: str) -> str:
    return " ".join(command[list(command).index(word) + 1 :])
