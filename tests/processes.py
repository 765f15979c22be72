"""What runs on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process; of one that has ended, or is another user's, the parts are not to be had."""

    pid: int
    environ: list[bytes]  # NAME=VALUE
    words: list[bytes]  # of its command line, and an empty one after the last

    @property
    def line(self) -> str:
        return b" ".join(self.words).decode()


def running() -> Iterator[Process]:
    """The processes that can be looked at."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parts = [Path("/proc", entry, name).read_bytes() for name in ("environ", "cmdline")]
                environ, words = (part.split(b"\0") for part in parts)
                yield Process(int(entry), environ, words)
