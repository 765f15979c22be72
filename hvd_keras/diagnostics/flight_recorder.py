"""Writing the flight recorder: the last 1,024 collectives of a rank, as JSON.

The library keeps the records in memory that the ranks of a host share, so the first rank that is
still there also writes those of ranks that have died. ``hvd-diagnose FOLDER`` reads them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from hvd_keras import _library, world
from hvd_keras.diagnostics import FORMAT
from hvd_keras.launch.processes import is_alive

__all__ = ["dump_flight_recorder"]


def dump_flight_recorder(folder: str | os.PathLike[str] | None = None) -> str:
    """Writes what this rank's last collectives were, and how far they came.

    Each rank that calls it writes ``rank-R.json``; no other rank has to. It happens by itself when
    the job is aborted, and at SIGUSR2.

    Args:
        folder: where to; it is created. None for ``HVD_FLIGHT_RECORDER_DIR``, or, if that is not
            set, for a folder of this job in the system's folder for temporary files.

    Returns:
        The path of this rank's file. ``hvd-diagnose`` takes the folder.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        OSError: it cannot be written.
    """
    settings = world.require_initialized("hvd.dump_flight_recorder()")
    chosen = folder or settings.flight_recorder_dir
    target = Path(chosen) if chosen else _own_folder(settings.segment)
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    core = _library.core
    path = _write(target, settings.rank, core)
    pids = core.local_pids()
    living = [rank for rank, pid in sorted(pids.items()) if is_alive(pid)]
    if living and living[0] == settings.rank:
        for rank in sorted(set(pids) - set(living)):
            _write(target, rank, core)
    return str(path)


def _write(folder: Path, rank: int, core: Any) -> Path:
    path = folder / f"rank-{rank}.json"
    content = {
        "format": FORMAT,
        "rank": rank,
        "size": core.size(),
        "host": os.uname().nodename,
        "pid": core.local_pids()[rank],
        "written_by_rank": core.rank(),
        "written_ns": time.time_ns(),
        "abort": core.abort_text(),
        "process_sets": _process_sets(core),
        "records": core.flight_records(rank),
    }
    # Written beside its place and renamed: a reader never finds half of it.
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        scratch.write_text(json.dumps(content))
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return path


def _process_sets(core: Any) -> dict[str, list[int]]:
    from hvd_keras.process_sets import known_ids  # which needs world, as this module does

    return {str(number): core.process_set_ranks(number) for number in known_ids()}


def _own_folder(segment: str) -> Path:
    job = re.sub(r"[^A-Za-z0-9]+", "-", segment).strip("-") or str(os.getpid())
    folder = Path(tempfile.gettempdir()) / f"hvd-flight-recorder-{os.getuid()}-{job}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else; set HVD_FLIGHT_RECORDER_DIR")
    return folder
