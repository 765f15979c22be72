"""Connections between the processes of a job, which prove to each other that they belong to it.

Each side proves with an HMAC that it knows the job's secret (``multiprocessing.connection``). Only
then is anything that the other one says unpickled.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

__all__ = ["Address", "Server", "connect"]

Address = tuple[str, int]

# A stranger who connects and says nothing holds up nobody but the thread that listens to him.
_PROOF_SECONDS = 10.0
_CONNECT_SECONDS = 20.0


class Server:
    """Listens; each connection of one who knows the secret is served in a thread of its own.

    Args:
        host: the address to listen at; "" for all of this machine.
        secret: the job's.
        serve: gets each connection, and closes it.
    """

    def __init__(self, host: str, secret: bytes, serve: Callable[[Connection], None]) -> None:
        self._secret = secret
        self._serve = serve
        self._socket = socket.create_server((host, 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self.threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listens no more. Connections that were made go on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return  # closed
            thread = threading.Thread(target=self._meet, args=(accepted,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _meet(self, accepted: socket.socket) -> None:
        try:
            connection = _proven(accepted, self._secret, deliver_challenge, answer_challenge)
        except (AuthenticationError, EOFError, OSError):
            return  # a stranger
        self._serve(connection)


def connect(addresses: Sequence[Address], secret: bytes) -> Connection:
    """Connects to a ``Server``.

    Args:
        addresses: where it may be; they are tried in turn.
        secret: the job's.

    Raises:
        OSError: it is at none of them.
    """
    error: Exception | None = None
    for address in addresses:
        try:
            connected = socket.create_connection(address, _CONNECT_SECONDS)
            connected.settimeout(None)
            return _proven(connected, secret, answer_challenge, deliver_challenge)
        except (AuthenticationError, EOFError, OSError) as failure:
            error = error or failure
    tried = ", ".join(f"{host}:{port}" for host, port in addresses)
    raise OSError(f"{socket.gethostname()} cannot connect to {tried}: {error}") from error


def _proven(
    connected: socket.socket, secret: bytes, *steps: Callable[[Connection, bytes], None]
) -> Connection:
    """Makes a connection of a socket once both sides have proved that they know the secret."""
    _limit_reads(connected, _PROOF_SECONDS)
    connection = Connection(connected.detach())
    try:
        for step in steps:
            step(connection, secret)
    except BaseException:
        connection.close()
        raise
    with socket.socket(fileno=connection.fileno()) as same:
        _limit_reads(same, 0.0)
        same.detach()
    return connection


def _limit_reads(connected: socket.socket, seconds: float) -> None:
    """Sets how long a read may take; 0 for as long as it likes."""
    value = struct.pack("ll", int(seconds), 0)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
