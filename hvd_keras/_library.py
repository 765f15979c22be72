"""Finds, checks and loads the compiled library; no other module knows where it lies.

``_library.ops`` has the generated op functions (``hvd_allreduce`` ...) and ``_library.core`` is the
pybind11 module. Both come from one shared object, which is loaded at the first access to either.
"""

from __future__ import annotations

import functools
import importlib
import json
import platform
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hvd_keras.errors import LibraryError

__all__ = ["check_build", "library_path", "load", "no_xla"]

_FOLDER = Path(__file__).resolve().parent
_REBUILD = "rebuild it in the source folder of hvd_keras: pip install --force-reinstall --no-deps ."


def library_path(folder: Path = _FOLDER) -> Path:
    """Returns the path of the shared object for this Python.

    Raises:
        LibraryError: it is not there.
    """
    path = folder / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    if path.exists():
        return path
    others = sorted(other.name for other in folder.glob("_core.*.so"))
    found = f"found only {', '.join(others)}, for another Python" if others else "found none"
    raise LibraryError(f"The hvd_keras op library {path} does not exist ({found}); {_REBUILD}")


def check_build(installed: str, folder: Path = _FOLDER) -> None:
    """Compares what the library was built for with the ``installed`` TensorFlow version.

    TensorFlow keeps its C++ interface within a minor version only: a library that was built for
    another one does not load, and says so in undefined symbols.

    Raises:
        LibraryError: the versions do not fit, or what it was built for is not known.
    """
    try:
        built = json.loads((folder / "_build_info.json").read_text(encoding="utf-8"))
        built_for, python = str(built["tensorflow"]), str(built["python"])
    except (OSError, ValueError, KeyError) as error:
        raise LibraryError(
            f"It is not known for which TensorFlow the hvd_keras op library was built "
            f"({type(error).__name__}: {error}); {_REBUILD}"
        ) from None
    if built_for.split(".")[:2] != installed.split(".")[:2]:
        raise LibraryError(
            f"The hvd_keras op library was built for TensorFlow {built_for}, but TensorFlow "
            f"{installed} is installed; {_REBUILD}"
        )
    running = ".".join(platform.python_version_tuple()[:2])
    if python.split(".")[:2] != running.split("."):
        raise LibraryError(
            f"The hvd_keras op library was built for Python {python}, but this is Python "
            f"{running}; {_REBUILD}"
        )


@functools.cache
def load() -> tuple[Any, ModuleType]:
    """Loads the library, once, and returns ``(ops, core)``.

    Raises:
        LibraryError: it is missing, does not fit the installed TensorFlow or does not load.
    """
    import tensorflow as tf

    path = library_path()
    check_build(tf.__version__)
    try:
        # TensorFlow has to be first: the library's symbols come from it.
        ops = tf.load_op_library(str(path))
        core = importlib.import_module("hvd_keras._core")
    except (tf.errors.NotFoundError, ImportError) as error:
        raise LibraryError(
            f"The hvd_keras op library {path} does not load ({error}); {_REBUILD}"
        ) from error
    return ops, core


def no_xla(folder: Path = _FOLDER) -> str:
    """Returns why the library has no XLA version of the collectives, or '' where it has one."""
    built = json.loads((folder / "_build_info.json").read_text(encoding="utf-8"))
    return str(built.get("no_xla", ""))


def __getattr__(name: str) -> Any:
    if name == "ops":
        return load()[0]
    if name == "core":
        return load()[1]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
