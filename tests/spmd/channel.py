"""The ranks' way to the referee: lines of JSON over an abstract Unix socket.

It leaves no file behind, and has nothing to do with the collectives under test.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def address_of_job(segment: str) -> str:
    """The socket's address; the segment's is unique among the jobs of this machine."""
    return "\0hvd-spmd-" + hashlib.sha256(segment.encode()).hexdigest()[:24]


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps(message, default=str).encode() + b"\n"


class Channel:
    """A rank's connection to the referee.

    Args:
        address: from :func:`address_of_job`.
        patience: seconds in which the referee may come.
        hopeless: whether it certainly will not come any more.
    """

    def __init__(self, address: str, patience: float, hopeless: Callable[[], bool]) -> None:
        until = time.monotonic() + patience
        while True:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(address)
                break
            except OSError:
                self._socket.close()
                if time.monotonic() > until or hopeless():
                    raise
                time.sleep(0.02)
        # It answers in time or ends; this is for the case that it does neither.
        self._socket.settimeout(3600.0)
        self._lines = self._socket.makefile("rb")
        self._pid = os.getpid()

    def ask(self, message: Message) -> Message:
        """Sends a message and waits for the answer to all ranks.

        Raises:
            ConnectionError: the referee has gone.
        """
        if os.getpid() != self._pid:
            raise ConnectionError("a forked child cannot speak for its rank")
        self._socket.sendall(encode(message))
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the referee of the ranks has ended")
        return json.loads(line)

    def close(self) -> None:
        """Leaves."""
        self._lines.close()
        self._socket.close()
