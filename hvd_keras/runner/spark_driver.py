"""What the tasks of a Spark job tell the driver while they run.

Spark itself brings results back when a task has ended. Lines of output, messages and the order of
failures come through a connection of their own, whose secret travels within the pickled task.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from hvd_keras.runner.channel import Server, connect
from hvd_keras.runner.errors import RankFailedError, first_failure

__all__ = ["Driver", "DriverAddress", "Link"]

_LAST_MESSAGES_SECONDS = 2.0


class Link:
    """A task's way to the driver. Where the driver is gone, messages are lost."""

    def __init__(self, rank: int, connection: Connection) -> None:
        self._rank = rank
        self._connection = connection
        self._lock = threading.Lock()

    def log(self, text: str) -> None:
        self._send("log", text)

    def output(self, line: str) -> None:
        self._send("log", line)

    def failed(self, text: str, returncode: int | None) -> None:
        self._send("failed", (time.time(), self._rank, text, returncode))

    def _send(self, kind: str, content: Any) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._connection.send((kind, content))


class DriverAddress:
    """How a task finds the driver; pickled with the task."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._host = host
        self._port = port
        self._secret = secret

    def __repr__(self) -> str:  # the secret must not get into a log
        return f"DriverAddress({self._host!r}, {self._port})"

    @contextlib.contextmanager
    def connected(self, rank: int) -> Iterator[Link]:
        """Connects a task."""
        with connect([(self._host, self._port)], self._secret) as connection:
            yield Link(rank, connection)


class Driver:
    """Listens to the tasks of one job.

    Args:
        host: the address of this machine that the workers know.
        show: gets what they send.
        bind: the address to listen at, if it is another one.
    """

    def __init__(self, host: str, show: Callable[[str], None], bind: str | None = None) -> None:
        self._show = show
        secret = secrets.token_bytes(32)
        self._failures: list[tuple[float, int, str, int | None]] = []
        self._server = Server(host if bind is None else bind, secret, self._read)
        self.address = DriverAddress(host, self._server.port, secret)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.close()
        self._hear_the_last()

    def first_failure(self) -> RankFailedError | None:
        """The failure that came first, by itself; None if no task has told of one."""
        self._hear_the_last()
        told = sorted(self._failures, key=lambda failure: failure[:2])
        return first_failure(RankFailedError(text, rank, code) for _, rank, text, code in told)

    def _hear_the_last(self) -> None:
        until = time.monotonic() + _LAST_MESSAGES_SECONDS
        for thread in self._server.threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _read(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                kind, content = connection.recv()
                if kind == "failed":
                    self._failures.append(content)
                else:
                    self._show(content)
