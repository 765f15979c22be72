"""What the process around each rank tells ``hvdrun``: marked lines among its standard error.

A line starts with a character that no program writes there, and is short: MPI's launchers may cut
long ones in two.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_MARK = b"\x1ehvdrun:"
_LONGEST_TEXT = 700


_PIECE = b"\x1ehvdrun+"
_LAST_PIECE = b"\x1ehvdrun."


def cut_line(rank: int, line: bytes, longest: int) -> list[bytes]:
    """Cuts a line of a rank's into lines of at most ``longest`` bytes; :class:`LineJoiner` joins.

    Between the pieces of one line there is nothing else of that rank.
    """
    if len(line) <= longest:
        return [line]
    head = b"%d:" % rank
    step = longest - len(_PIECE) - len(head) - 1
    pieces = [line[at : at + step] for at in range(0, len(line), step)]
    # The last one has the line's own end, and may be that end alone.
    return [
        *(_PIECE + head + piece + b"\n" for piece in pieces[:-1]),
        _LAST_PIECE + head + pieces[-1],
    ]


class LineJoiner:
    """Makes lines of the pieces of :func:`cut_line`, of all ranks."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, list[bytes]] = {}

    def feed(self, line: bytes) -> bytes | None:
        """The whole line that this one is or completes; None while there is more to come."""
        if not line.startswith((_PIECE, _LAST_PIECE)):
            return line
        rank, _, piece = line[len(_PIECE) :].partition(b":")
        if line.startswith(_PIECE):
            self._pieces.setdefault(rank, []).append(piece[:-1])
            return None
        return b"".join([*self._pieces.pop(rank, ()), piece])


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
