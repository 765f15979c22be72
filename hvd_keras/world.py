"""The group of processes that train together: joining it, leaving it, and one's place in it."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
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


def init(comm: Sequence[int] | None = None, process_sets: Any = None) -> None:
    """Meets the other ranks. Call it once, at the start of the script.

    The launcher ``hvdrun`` says, through the environment, who they are; without it this process is
    the only one, rank 0 of 1. A second call does nothing. No seed and no TensorFlow setting is
    changed.

    Args:
        comm: None for all processes that the launcher started.
        process_sets: ``hvd.ProcessSet`` objects to add, the same ones in the same order on every
            rank. More can be added later, so that Horovod's "dynamic" means the same as None.

    Raises:
        ValueError: an environment variable is wrong, or an argument is not supported.
        LibraryError: the op library does not fit the installed TensorFlow.
        hvd_keras._core.CollectiveError: the ranks did not all come within HVD_START_TIMEOUT
            seconds; the message names those that are missing.
    """
    global _settings
    if is_initialized():
        return
    settings = Settings.from_environment()
    if comm is not None and (
        not isinstance(comm, (list, tuple, range))
        or list(comm) not in ([], list(range(settings.size)))
    ):
        raise not_implemented("hvd.init", "comm", comm, "leave it out: all ranks take part")
    _library.core.init(
        rank=settings.rank,
        size=settings.size,
        local_rank=settings.local_rank,
        local_size=settings.local_size,
        cross_rank=settings.cross_rank,
        cross_size=settings.cross_size,
        segment=settings.segment,
        start_timeout=settings.start_timeout,
        deadlock_seconds=settings.deadlock_seconds,
        stall_warning_seconds=settings.stall_warning_seconds,
        stall_shutdown_seconds=settings.stall_shutdown_seconds,
        chunk_bytes=settings.chunk_bytes,
    )
    _settings = settings
    atexit.register(shutdown)
    from hvd_keras.diagnostics import watcher  # which needs this module

    watcher.start(settings.flight_recorder_dir)
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
    _settings = None
    forget_all()
    _library.core.shutdown()


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
    """Returns the number of this host, from 0 to ``cross_size() - 1``."""
    return _core_for("hvd.cross_rank()").cross_rank()


def cross_size() -> int:
    """Returns the number of hosts."""
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
