"""One rank of a runner's job: ``python -m hvd_keras.runner FOLDER``.

It takes the function from ``FOLDER/call`` and leaves what it returns in ``FOLDER/result-RANK``, or
the traceback in ``FOLDER/failure-RANK``.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from hvd_keras.runner.payload import pack_result, unpack_call
from hvd_keras.settings import Settings

__all__ = ["CALL", "failure_file", "main", "result_file"]

CALL = "call"


def result_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returns."""
    return folder / f"result-{rank}"


def failure_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves the traceback of the function."""
    return folder / f"failure-{rank}"


def main(folder: Path) -> int:
    """Runs the function and returns the exit code of this process."""
    settings = Settings.from_environment()
    if settings.compat:
        from hvd_keras import compat

        compat.install()
    try:
        function, args, kwargs = unpack_call((folder / CALL).read_bytes())
        content = pack_result(function(*args, **kwargs))
    except Exception as error:
        text = traceback.format_exc()
        failure_file(folder, settings.rank).write_text(text)
        sys.excepthook(type(error), error, error.__traceback__)  # which tells the other ranks
        return 1
    # Written beside its place and renamed: there is never half of it.
    path = result_file(folder, settings.rank)
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(content)
    scratch.replace(path)
    return 0
