"""The ranks' way to the referee: lines of JSON over a socket.

It leaves no file behind, and has nothing to do with the collectives under test. An address is
``unix:NAME``, an abstract Unix socket, or ``tcp:HOST:PORT`` where there are several hosts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def listen(address: str, count: int) -> socket.socket:
    """The referee's end, for so many connections."""
    kind, _, rest = address.partition(":")
    if kind == "tcp":
        return socket.create_server(("", int(rest.rpartition(":")[2])), backlog=count)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{rest}")
    listener.listen(count)
    return listener


def connect(address: str) -> socket.socket:
    """A rank's end."""
    kind, _, rest = address.partition(":")
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{rest}")
    except OSError:
        connection.close()
        raise
    return connection


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps(message, default=str).encode() + b"\n"


class Channel:
    """A rank's connection to the referee.

    Args:
        address: where the referee is.
        patience: seconds in which the referee may come.
        hopeless: whether it certainly will not come any more.
    """

    def __init__(self, address: str, patience: float, hopeless: Callable[[], bool]) -> None:
        until = time.monotonic() + patience
        while True:
            try:
                self._socket = connect(address)
                break
            except OSError:
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
