"""Starting and ending the timeline: what each rank's collectives spent their time on.

The library writes it (ops/core/timeline.h); here is decided where to. docs/timeline.md says what is
in it, ``hvd-timeline report`` makes a page of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from hvd_keras import _library, world

__all__ = ["path_of_rank", "start", "start_timeline", "stop_timeline"]


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begins to write a timeline: Chrome trace events, for Perfetto and ``hvd-timeline report``.

    Each rank that calls it writes a file of its own; no other rank has to. What is there already is
    replaced. ``HVD_TIMELINE=/path/to/file.json`` does the same from ``hvd.init()`` on.

    Args:
        file_path: rank 0's file, for example ``/tmp/timeline.json``; rank R's is
            ``/tmp/timeline.rank-R.json`` beside it. A folder, or what ends with ``/``, gets
            ``rank-0.json``, ``rank-1.json``, ... The folder is created.
        mark_cycles: also mark when the engine begins to work after it had nothing to do.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        OSError: the folder cannot be created.
        hvd_keras._core.CollectiveError: the file cannot be created, or a timeline is being written
            already.
    """
    world.require_initialized("hvd.start_timeline()")
    start(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Writes what has happened so far, and ends this rank's timeline, if there is one.

    ``hvd.shutdown()`` and the end of the script do the same.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    world.require_initialized("hvd.stop_timeline()")
    _library.core.stop_timeline()


def start(file_path: str, mark_cycles: bool) -> None:
    """``start_timeline``, after the check that the world is there."""
    settings = world.require_initialized("hvd.start_timeline()")
    path = path_of_rank(file_path, _library.core.rank())
    path.parent.mkdir(parents=True, exist_ok=True)
    _library.core.start_timeline(str(path), bool(mark_cycles), settings.timeline_max_bytes)


def path_of_rank(file_path: str, rank: int) -> Path:
    """Returns where a rank writes, if all are given this path."""
    path = Path(file_path).absolute()
    if file_path.endswith("/") or path.is_dir():
        return path / f"rank-{rank}.json"
    if rank == 0:
        return path
    stem = path.name[: -len(path.suffix)] if path.suffix == ".json" else path.name
    return path.with_name(f"{stem}.rank-{rank}.json")
