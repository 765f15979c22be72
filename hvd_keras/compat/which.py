"""Which horovod a script uses, where two could be meant."""

from __future__ import annotations

import sys
from importlib import metadata

from hvd_keras.compat import HOROVOD_VERSION
from hvd_keras.settings import Settings

__all__ = ["say_which_is_used"]


def say_which_is_used() -> None:
    """Says, on rank 0, that the installed Horovod is not used, if there is one."""
    try:
        installed = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return
    try:
        rank = Settings.from_environment().rank
    except ValueError:
        rank = 0  # init() will say what is wrong
    if rank == 0:
        print(
            f"hvd_keras.compat: 'import horovod' gives hvd_keras with the names of Horovod "
            f"{HOROVOD_VERSION}, not the Horovod {installed} that is installed",
            file=sys.stderr,
            flush=True,
        )
