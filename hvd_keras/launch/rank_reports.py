"""What the process around each rank tells ``hvdrun``: marked lines among its standard error.

A line starts with a character that no program writes there, and is short: MPI's launchers may cut
long ones in two.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_MARK = b"\x1ehvdrun:"
_LONGEST_TEXT = 700


class RankReport(NamedTuple):
    """One message.

    Attributes:
        event: "started", "ended" (the rank's command has) or "error" (it could not be started).
        rank: the rank.
        host: the name of its host.
        pid: the process id of the rank's command.
        returncode: its exit code, or minus the signal's number.
        told_to_end: whether it had been sent a signal by then.
        text: what the error is.
    """

    event: str
    rank: int
    host: str
    pid: int = 0
    returncode: int = 0
    told_to_end: bool = False
    text: str = ""

    def to_line(self) -> bytes:
        """The marked line, with its end."""
        short = self._replace(text=self.text[:_LONGEST_TEXT])
        return _MARK + json.dumps(list(short), separators=(",", ":")).encode() + b"\n"


def parse_report(line: bytes) -> tuple[bytes, RankReport | None]:
    """Takes the message out of a line: what is before it, and the message or None.

    Something may be before it where a launcher has written half a line of its own.
    """
    before, mark, text = line.partition(_MARK)
    if not mark:
        return line, None
    try:
        fields: Any = json.loads(text)
        return before, RankReport(*fields)
    except (TypeError, ValueError):
        return line, None
