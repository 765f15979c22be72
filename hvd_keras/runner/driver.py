"""What the ranks of other hosts tell the driver while they run, and what it tells them.

Lines of output, messages, failures in their order and, where nothing else carries them, the
function and its results come through connections whose secret the ranks got with their start.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from hvd_keras.runner.channel import Address, Server, connect
from hvd_keras.runner.errors import RankFailedError, first_failure, is_consequence

__all__ = ["Driver", "DriverAddress", "Link", "addresses_towards"]

_LAST_MESSAGES_SECONDS = 2.0
_CAUSE_SECONDS = 10.0
_ANY_PORT = 9  # no packet is sent to it


class Link:
    """A rank's way to the driver. Where the driver is gone, messages are lost."""

    def __init__(self, rank: int, connection: Connection) -> None:
        self._rank = rank
        self._connection = connection
        self._lock = threading.Lock()

    def log(self, text: str) -> None:
        self._send("log", text)

    def failed(self, text: str, returncode: int | None) -> None:
        self._send("failed", (time.time(), self._rank, text, returncode))

    def wait_for_cause(self) -> None:
        """Waits until the driver knows of a failure that is not another one's consequence.

        For those whose end ends the ranks that have not told theirs yet. Not for long: a rank that
        has vanished with its host tells nothing.
        """
        with contextlib.suppress(OSError), self._lock:
            self._connection.send(("cause", None))
            self._connection.poll(_CAUSE_SECONDS)

    def call(self) -> bytes:
        """Returns the packed call of this job.

        Raises:
            EOFError, OSError: the driver is gone.
        """
        with self._lock:
            self._connection.send(("call", None))
            return self._connection.recv_bytes()

    def result(self, content: bytes) -> None:
        """Sends what the function has returned, packed.

        Raises:
            OSError: the driver is gone.
        """
        with self._lock:
            self._connection.send(("result", (self._rank, content)))

    def _send(self, kind: str, content: Any) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._connection.send((kind, content))


class DriverAddress:
    """How a rank finds the driver; it can be pickled, or be the value of a variable.

    Args:
        addresses: where it may be; they are tried in turn.
        secret: the job's.
    """

    def __init__(self, addresses: Sequence[Address], secret: bytes) -> None:
        self._addresses = list(addresses)
        self._secret = secret

    def __repr__(self) -> str:  # the secret must not get into a log
        return f"DriverAddress({self._addresses!r})"

    def to_text(self) -> str:
        """A line, with the secret in it."""
        return json.dumps([self._addresses, self._secret.hex()])

    @classmethod
    def from_text(cls, text: str) -> DriverAddress:
        """The inverse of ``to_text``."""
        addresses, secret = json.loads(text)
        return cls([(host, port) for host, port in addresses], bytes.fromhex(secret))

    @contextlib.contextmanager
    def connected(self, rank: int) -> Iterator[Link]:
        """Connects a rank."""
        with connect(self._addresses, self._secret) as connection:
            yield Link(rank, connection)


class Driver:
    """Listens to the ranks of one job.

    Args:
        hosts: addresses of this machine that the ranks may know.
        show: gets what they send.
        bind: the address to listen at; "" for all of this machine.
        call: the packed call, for those who ask for it.
    """

    def __init__(
        self, hosts: Sequence[str], show: Callable[[str], None], bind: str = "", call: bytes = b""
    ) -> None:
        self._show = show
        self._call = call
        self._failures: list[tuple[float, int, str, int | None]] = []
        self._told = threading.Condition()
        self.results: dict[int, bytes] = {}
        secret = secrets.token_bytes(32)
        self._server = Server(bind, secret, self._read)
        self.address = DriverAddress([(host, self._server.port) for host in hosts], secret)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.close()
        self.hear_the_last()

    def first_failure(self) -> RankFailedError | None:
        """The failure that came first, by itself; None if no rank has told of one."""
        self.hear_the_last()
        return first_failure(self._errors())

    def failure_of(self, rank: int) -> str:
        """What a rank has said about its failure; empty if nothing."""
        self.hear_the_last()
        return next((text for _, told, text, _ in self._failures if told == rank), "")

    def hear_the_last(self) -> None:
        """Waits a moment for what the ranks have sent before their end."""
        until = time.monotonic() + _LAST_MESSAGES_SECONDS
        for thread in self._server.threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _read(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                kind, content = connection.recv()
                if kind == "call":
                    connection.send_bytes(self._call)
                elif kind == "failed":
                    with self._told:
                        self._failures.append(content)
                        self._told.notify_all()
                elif kind == "cause":
                    with self._told:
                        self._told.wait_for(self._knows_cause, _CAUSE_SECONDS)
                    connection.send(None)
                elif kind == "result":
                    rank, packed = content
                    self.results[rank] = packed
                else:
                    self._show(content)

    def _errors(self) -> list[RankFailedError]:
        told = sorted(self._failures, key=lambda failure: failure[:2])
        return [RankFailedError(text, rank, code) for _, rank, text, code in told]

    def _knows_cause(self) -> bool:
        return not all(map(is_consequence, self._errors()))


def addresses_towards(hosts: Sequence[str]) -> list[str]:
    """The addresses of this machine by which these hosts may reach it, the likeliest first."""
    found = []
    for host in hosts:
        with (
            contextlib.suppress(OSError, UnicodeError),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
        ):
            probe.connect((host, _ANY_PORT))  # which chooses the way there
            found.append(probe.getsockname()[0])
    others = [name for name in found if not name.startswith("127.")]
    # Names that only ssh can resolve say nothing about the way.
    return list(dict.fromkeys([*others, socket.gethostname(), "127.0.0.1"]))
