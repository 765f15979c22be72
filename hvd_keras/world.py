"""The group of processes that train together: joining it, leaving it, and one's place in it."""

from __future__ import annotations

import atexit
from typing import Any

from hvd_keras import _library
from hvd_keras.errors import NotInitializedError, not_implemented
from hvd_keras.settings import Settings

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

_settings: Settings | None = None

# Of the settings, what the engine has to know.
_CONFIG_FIELDS = (
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "segment",
    "host_timeout",
    "start_timeout",
    "deadlock_seconds",
    "stall_warning_seconds",
    "stall_shutdown_seconds",
    "chunk_bytes",
)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Meets the other ranks. Call it once, at the start of the script.

    The launcher, ``hvdrun`` or one of MPI (``mpirun``, ``mpiexec``, ``srun``, ``jsrun``), says,
    through the environment, who they are; without one this process is the only one, rank 0 of 1. A
    second call does nothing. No seed and no TensorFlow setting is changed.

    Args:
        comm: None for all processes that the launcher started. Under MPI also a communicator of
            mpi4py, whose processes then are the ranks, or a list of ranks of ``MPI.COMM_WORLD``.
        process_sets: ``hvd.ProcessSet`` objects to add, the same ones in the same order on every
            rank. More can be added later, so that Horovod's "dynamic" means the same as None.

    Raises:
        ValueError: an environment variable is wrong, or an argument is not supported.
        ImportError: an MPI launcher has started this process, and mpi4py cannot be imported.
        LibraryError: the op library does not fit the installed TensorFlow.
        hvd_keras._core.CollectiveError: the ranks did not all come within HVD_START_TIMEOUT
            seconds; the message names those that are missing.
    """
    global _settings
    if is_initialized():
        return
    settings = Settings.from_environment()
    config = _library.core.WorldConfig()
    if settings.mpi_size or hasattr(comm, "Get_rank"):
        from hvd_keras import mpi  # which is not needed on one host

        settings = mpi.meet(comm, settings, config)
    elif comm is not None and (
        not isinstance(comm, (list, tuple, range))
        or list(comm) not in ([], list(range(settings.size)))
    ):
        raise not_implemented(
            "hvd.init", "comm", comm, "leave it out, or start the ranks with mpirun"
        )
    for name in _CONFIG_FIELDS:
        setattr(config, name, getattr(settings, name))
    _library.core.init(config)
    _settings = settings
    atexit.register(shutdown)
    from hvd_keras.diagnostics import watcher  # which needs this module

    watcher.start(settings.flight_recorder_dir)
    if settings.timeline:
        from hvd_keras.diagnostics import timeline  # which needs this module

        timeline.start(settings.timeline, settings.timeline_mark_cycles)
    if process_sets is not None and not isinstance(process_sets, str):
        from hvd_keras.process_sets import add_process_set  # which needs this module

        for process_set in process_sets:
            add_process_set(process_set)


def shutdown() -> None:
    """Leaves the group; does nothing where ``init`` was not called. Python's exit calls it."""
    global _settings
    atexit.unregister(shutdown)
    if _settings is None:
        return
    from hvd_keras.diagnostics import watcher  # which need this module
    from hvd_keras.process_sets import forget_all

    watcher.stop()
    by_mpi = _settings.mpi_size > 0
    aborted = by_mpi and bool(_library.core.abort_text())
    _settings = None
    forget_all()
    _library.core.shutdown()
    if by_mpi:
        from hvd_keras import mpi

        mpi.left(aborted)


def is_initialized() -> bool:
    """Returns whether ``init`` was called, and ``shutdown`` was not."""
    return _settings is not None and _library.core.is_initialized()


def rank() -> int:
    """Returns this process's rank, from 0 to ``size() - 1``."""
    return _core_for("hvd.rank()").rank()


def size() -> int:
    """Returns the number of ranks."""
    return _core_for("hvd.size()").size()


def local_rank() -> int:
    """Returns this process's rank among those of its host; it picks the GPU."""
    return _core_for("hvd.local_rank()").local_rank()


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _core_for("hvd.local_size()").local_size()


def cross_rank() -> int:
    """Returns this host's number among those that have a rank of this ``local_rank()``."""
    return _core_for("hvd.cross_rank()").cross_rank()


def cross_size() -> int:
    """Returns the number of hosts that have a rank of this ``local_rank()``."""
    return _core_for("hvd.cross_size()").cross_size()


def require_initialized(caller: str) -> Settings:
    """Returns the settings ``init`` has read.

    Raises:
        NotInitializedError: it was not called; the message names the ``caller``.
    """
    if _settings is None:
        raise NotInitializedError(
            f"hvd.init() has not been called: {caller} needs it, so call it once at the start of "
            "the script."
        )
    return _settings


def _core_for(caller: str) -> Any:
    require_initialized(caller)
    return _library.core
