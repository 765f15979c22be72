"""``horovodrun`` as another name of ``hvdrun --compat``, for whoever asks for it.

It is not installed with the package, since the real Horovod has a command of that name.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from hvd_keras.launch import cli

__all__ = ["install", "main"]

_MARK = "from hvd_keras.compat.horovodrun import main"


def main() -> int:
    """Runs ``hvdrun --compat`` with this process's arguments, and returns its exit code."""
    return cli.main(["--compat", *sys.argv[1:]])


def install(folder: str | None = None) -> Path:
    """Writes the command ``horovodrun`` and returns its path.

    Args:
        folder: where to; None for the folder of ``hvdrun``, else of this Python.

    Raises:
        FileExistsError: there is another ``horovodrun``.
    """
    hvdrun = shutil.which("hvdrun", path=os.path.dirname(sys.executable))
    path = Path(folder or os.path.dirname(hvdrun or sys.executable)) / "horovodrun"
    if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(
            f"{path} exists, and belongs to another package; remove it, or name another folder"
        )
    path.write_text(
        f"#!{sys.executable}\nimport sys\n\n{_MARK}\n\nsys.exit(main())\n", encoding="utf-8"
    )
    path.chmod(0o755)
    return path
