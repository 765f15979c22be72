"""Saving models atomically, and loading them with a distributed optimizer."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.compression import Compression
from hvd_keras.keras import _peers, _versions, legacy_h5
from hvd_keras.keras._distributed import is_distributed
from hvd_keras.keras._file_format import is_hdf5, keras_for, restore_from_folder
from hvd_keras.keras.optimizer import DistributedOptimizer

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
) -> Any:
    """Loads a model and makes its optimizer distributed, with slots and iteration count.

    Training goes on exactly where it was. (The random seeds of dropout and the like are not in the
    file; Keras does not save them.) Every rank reads the file itself, and may have trained before
    with or without this package.

    Args:
        filepath: a ``.keras`` file, or a legacy ``.h5`` file. What Keras 2 has written is loaded by
            it if the program has imported it (else by Keras 3, which knows some of it); so are
            SavedModel folders. Keras 2 has no slots of legacy optimizers in ``.keras`` files.
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
    keras = keras_for(filepath)
    # Keras 2 reads its files as they should be read.
    is_legacy = is_hdf5(filepath) and keras is not _versions.tf_keras()
    model = keras.saving.load_model(
        filepath, custom_objects=objects, compile=compile and not is_legacy, safe_mode=safe_mode
    )
    if is_legacy and compile:
        legacy_h5.compile_from_file(model, filepath, objects)
    if os.path.isdir(filepath) and compile:
        restore_from_folder(model, filepath)
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


def save_model(
    model: Any, filepath: str | os.PathLike, overwrite: bool = True, **kwargs: Any
) -> None:
    """``model.save(filepath)``, but the file at ``filepath`` is at any time the old or the new one.

    It is written beside its place, flushed to the disk and moved. Nothing is exchanged with other
    ranks, so it may be called on rank 0 alone. What a crash leaves behind is a folder
    ``.hvd-tmp-*``, which the next save there removes. Remote paths ("gs://...") are written
    directly.

    Args:
        model: the model.
        filepath: ends in ``.keras``, or in ``.h5`` for the legacy format.
        overwrite: False: an old file is an error.
        **kwargs: passed to ``keras.Model.save``.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    with _replacing(filepath, overwrite, _nbytes(model)) as path, _keeping_compile_config(model):
        model.save(path, **kwargs)


def save_weights(
    model: Any, filepath: str | os.PathLike, overwrite: bool = True, **kwargs: Any
) -> None:
    """``model.save_weights(filepath)``, atomically like ``save_model``.

    Args, errors: see ``save_model``; ``filepath`` ends in ``.weights.h5``.
    """
    with _replacing(filepath, overwrite, _nbytes(model)) as path:
        model.save_weights(path, **kwargs)


@contextlib.contextmanager
def _replacing(filepath: str | os.PathLike, overwrite: bool, nbytes: int) -> Iterator[str]:
    """Yields a path to write ``nbytes`` to; that file replaces ``filepath`` when all went well."""
    if "://" in os.fspath(filepath):
        yield os.fspath(filepath)
        return
    target = Path(os.path.realpath(filepath))  # a link stays a link
    if target.is_dir():
        raise IsADirectoryError(f"cannot save to {target}: it is a directory")
    if target.exists() and not overwrite:
        raise FileExistsError(f"cannot save to {target}: there is a file, and overwrite=False")
    _remove_forgotten(target.parent)
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_owner()}-", dir=target.parent))
        _in_use.add(folder)
        written = folder / target.name
        if is_hdf5(target):
            _require_space(written, nbytes)
        yield str(written)
        _move(written, target)
    except OSError as error:
        raise _cannot_save(target, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _in_use.discard(folder)


@contextlib.contextmanager
def _keeping_compile_config(model: Any) -> Iterator[None]:
    """Saving as ``.h5``, Keras takes the optimizer out of what ``compile`` was given.

    A ``.keras`` file that is written later would then have RMSprop, the default, in its place.
    """
    config = getattr(getattr(model, "_compile_config", None), "config", {})
    before = dict(config)
    try:
        yield
    finally:
        config.update(before)


def _require_space(path: Path, nbytes: int) -> None:
    """Raises OSError if a file of this size cannot be written.

    The HDF5 library brings the process down when its file system is full (segmentation fault), so
    it must not come to that.
    """
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
    path.unlink()


def _nbytes(model: Any) -> int:
    """About the size of the model's file: its variables, and what describes them."""
    optimizer = getattr(model, "optimizer", None)
    variables = list(getattr(model, "variables", ()))
    if optimizer is not None:
        variables += _versions.optimizer_variables(optimizer)
    content = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
    return content + 4096 * len(variables) + 65536


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
            host, pid, _ = path.name[len(_PREFIX) :].rsplit("-", 2)
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
