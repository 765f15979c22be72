"""Telling the ranks how one of them has ended.

The kernel says it to the parent alone, so the launcher writes it into the segment that the ranks
share, and their errors can name the signal or the exit code. The place is fixed: see ``Header`` in
ops/transport/shm/layout.h.
"""

from __future__ import annotations

import os
import struct

_OFFSET = 64
_ENTRY = struct.Struct("<Ii")  # is it known?, exit code or minus the signal's number


def write_obituary(segment_fd: int, rank: int, returncode: int) -> None:
    """Notes that ``rank`` has ended with ``returncode``.

    Args:
        segment_fd: the segment. Where no rank has set it up yet, nobody waits for anybody.
        rank: the rank, 0 or more.
        returncode: its exit code, or minus the number of the signal that ended it.
    """
    place = _OFFSET + rank * _ENTRY.size
    if os.fstat(segment_fd).st_size < place + _ENTRY.size:
        return
    entry = _ENTRY.pack(1, returncode)
    # The flag last: whoever sees it may read the rest.
    os.pwrite(segment_fd, entry[4:], place + 4)
    os.pwrite(segment_fd, entry[:4], place)
