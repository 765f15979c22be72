"""The alias: scripts that import ``horovod`` run on hvd_keras, unmodified.

    python -m hvd_keras.compat train.py --epochs 3
    hvdrun --compat -np 2 python train.py --epochs 3

Nothing is changed unless it is asked for: the alias is the package in ``alias/``, and asking puts
that folder where Python looks first. A ``horovod`` that is installed is left alone, and is not
used.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from hvd_keras.launch.environment import ALIAS_FOLDER

__all__ = ["ALIAS_FOLDER", "HOROVOD_VERSION", "install"]

#: The release of Horovod whose names and arguments the alias has.
HOROVOD_VERSION = "0.28.1"


class _AliasFinder:
    """Finds ``horovod`` and ``sparkdl`` in ``ALIAS_FOLDER``, before all other places."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in ("horovod", "sparkdl"):
            return None  # submodules are found through the package's own path
        return PathFinder.find_spec(name, [ALIAS_FOLDER])


def install() -> None:
    """Makes ``import horovod`` mean the alias in this process, whatever else is installed.

    Raises:
        RuntimeError: another ``horovod`` has been imported already.
    """
    loaded = sys.modules.get("horovod")
    origin = str(getattr(loaded, "__file__", None))
    if loaded is not None and not origin.startswith(ALIAS_FOLDER):
        raise RuntimeError(
            f"horovod has been imported from {origin} before hvd_keras.compat.install(); call it "
            "before the first import of horovod"
        )
    if not any(finder is _AliasFinder for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder)
