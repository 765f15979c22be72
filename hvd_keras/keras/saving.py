"""Saving models atomically, and loading them with a distributed optimizer."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras

from hvd_keras import world
from hvd_keras.compression import Compression
from hvd_keras.keras import _peers, legacy_h5
from hvd_keras.keras.optimizer import DistributedOptimizer, is_distributed

__all__ = ["load_model", "save_model", "save_weights"]

# Folders in which files are written before they are moved to their place:
# .hvd-tmp-<host>-<pid>-<random>/<name of the file>
_PREFIX = ".hvd-tmp-"
_FORGOTTEN_SECONDS = 24 * 3600
_in_use: set[Path] = set()


def load_model(
    filepath: str | os.PathLike,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    *,
    compile: bool = True,
    safe_mode: bool = True,
    **optimizer_options: Any,
) -> keras.Model:
    """Loads a model and makes its optimizer distributed, with slots and iteration count.

    Training goes on exactly where it was. (The random seeds of dropout and the like are not in the
    file; Keras does not save them.) Every rank reads the file itself, and may have trained before
    with or without this package.

    Args:
        filepath: a ``.keras`` file, or a legacy ``.h5`` file.
        custom_optimizers: optimizer classes that Keras does not know.
        custom_objects: other classes and functions, by name, as for ``keras.saving.load_model``.
        compression: see ``DistributedOptimizer``.
        compile: False: do not compile the model; it then has no optimizer to wrap.
        safe_mode: see ``keras.saving.load_model``.
        **optimizer_options: other options of ``DistributedOptimizer``.

    Returns:
        The model. Where the file has no optimizer it is not compiled: compile it with a
        ``DistributedOptimizer``.

    Raises:
        FileNotFoundError: this rank cannot see the file.
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    world.require_initialized("hvd.load_model()")
    _require_file(filepath)
    objects = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    is_legacy = os.fspath(filepath).endswith((".h5", ".hdf5"))
    model = keras.saving.load_model(
        filepath, custom_objects=objects, compile=compile and not is_legacy, safe_mode=safe_mode
    )
    if is_legacy and compile:
        legacy_h5.compile_from_file(model, filepath, objects)
    for optimizer in _peers.optimizers_of(model):
        if not is_distributed(optimizer):
            DistributedOptimizer(optimizer, compression=compression, **optimizer_options)
    return model


def _require_file(filepath: str | os.PathLike) -> None:
    path = os.fspath(filepath)
    if "://" not in path and not os.path.exists(path):
        raise FileNotFoundError(
            f"rank {world.rank()} on {socket.gethostname()}: there is no file "
            f"{os.path.abspath(path)}. Every rank reads the model itself, so the file must be "
            "where all of them see it (checkpoints are written by rank 0 only)"
        )


def save_model(model: keras.Model, filepath: str | os.PathLike, **kwargs: Any) -> None:
    """``model.save(filepath)``, but the file at ``filepath`` is at any time the old or the new one.

    It is written beside its place, flushed to the disk and moved. Nothing is exchanged with other
    ranks, so it may be called on rank 0 alone. What a crash leaves behind is a folder
    ``.hvd-tmp-*``, which the next save there removes. Remote paths ("gs://...") are written
    directly.

    Args:
        model: the model.
        filepath: ends in ``.keras``, or in ``.h5`` for the legacy format.
        **kwargs: passed to ``keras.Model.save``.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    with _replacing(filepath) as path:
        model.save(path, **kwargs)


def save_weights(model: keras.Model, filepath: str | os.PathLike, **kwargs: Any) -> None:
    """``model.save_weights(filepath)``, atomically like ``save_model``.

    Args, errors: see ``save_model``; ``filepath`` ends in ``.weights.h5``.
    """
    with _replacing(filepath) as path:
        model.save_weights(path, **kwargs)


@contextlib.contextmanager
def _replacing(filepath: str | os.PathLike) -> Iterator[str]:
    """Yields a path to write to; the file takes the place of ``filepath`` when all went well."""
    if "://" in os.fspath(filepath):
        yield os.fspath(filepath)
        return
    target = Path(os.path.realpath(filepath))  # a link stays a link
    if target.is_dir():
        raise IsADirectoryError(f"cannot save to {target}: it is a directory")
    _remove_forgotten(target.parent)
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_owner()}-", dir=target.parent))
        _in_use.add(folder)
        yield str(folder / target.name)
        _move(folder / target.name, target)
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError where closing fails
        raise _cannot_save(target, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _in_use.discard(folder)


def _move(written: Path, target: Path) -> None:
    if target.exists():
        shutil.copymode(target, written)
    _flush(written)
    os.replace(written, target)
    _flush(target.parent)  # the folder holds the name


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_save(target: Path, error: Exception) -> OSError:
    state = "the file that was there is unchanged" if target.exists() else "there is no file"
    with contextlib.suppress(OSError):
        state += f", {shutil.disk_usage(target.parent).free / 1e6:.1f} MB are free"
    rank = f"rank {world.rank()}: " if world.is_initialized() else ""
    message = f"{rank}cannot save to {target} ({type(error).__name__}: {error}); {state}"
    failure = OSError(message)
    failure.errno = getattr(error, "errno", None)
    return failure


def _owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _remove_forgotten(folder: Path) -> None:
    """Removes what processes that are gone have left in ``folder``."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            host, pid, _ = path.name[len(_PREFIX):].rsplit("-", 2)
            is_old = time.time() - path.stat().st_mtime > _FORGOTTEN_SECONDS
            is_dead = host == socket.gethostname() and not _is_alive(int(pid), path)
            if is_dead or is_old:
                shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int, folder: Path) -> bool:
    if pid == os.getpid():
        return folder in _in_use  # else left by a process whose number this one has got
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
