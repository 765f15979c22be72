"""What a rank gets from its stand-in: who it is in the MPI job, and the way to MPI's daemon.

They meet at a Unix socket without a file: nothing can be left behind. Both sides check that the
other one is a process of the same user.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable

__all__ = ["DONE", "Identity", "is_own", "rendezvous"]

DONE = b"."
_POLL_SECONDS = 0.2
_MOST_BYTES = 1 << 20
_MOST_FDS = 4


class Identity:
    """A rank's place in an MPI job.

    Attributes:
        variables: the environment variables that MPI needs.
        fds: the descriptors that these refer to; a process that takes the place inherits them.
    """

    def __init__(self, stand_in: socket.socket, variables: dict[str, str], fds: list[int]) -> None:
        self._stand_in = stand_in
        self.variables = variables
        self.fds = fds

    def release_fds(self) -> None:
        """Closes this process's copies of the descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def done(self) -> None:
        """The rank has ended well."""
        with self._stand_in, contextlib.suppress(OSError):  # it may have been ended before
            self._stand_in.sendall(DONE)


class Rendezvous:
    """Where a rank waits for its stand-in."""

    def __init__(self, meeting: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(rendezvous(meeting, rank))
        self._socket.listen()
        self._socket.settimeout(_POLL_SECONDS)

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def wait(self, seconds: float, check: Callable[[], None]) -> Identity | None:
        """Returns the identity; None after ``seconds``.

        Args:
            check: called now and then; what it raises ends the wait.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                stand_in, _ = self._socket.accept()
            except TimeoutError:
                check()
                continue
            if is_own(stand_in):
                return _received(stand_in)
            stand_in.close()
        return None


def rendezvous(meeting: str, rank: int) -> bytes:
    """The address, which has no file."""
    return f"\0hvd-{meeting}-{rank}".encode()


def is_own(connected: socket.socket) -> bool:
    """Whether the other side is a process of this user."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return uid == os.getuid()


def _received(stand_in: socket.socket) -> Identity:
    stand_in.settimeout(None)
    text, fds, _, _ = socket.recv_fds(stand_in, _MOST_BYTES, _MOST_FDS)
    while not text.endswith(b"\n"):
        more = stand_in.recv(_MOST_BYTES)
        if not more:
            raise RuntimeError("the process that MPI has started for this rank ended too early")
        text += more
    variables = json.loads(text)
    if fds:
        variables["PMI_FD"] = str(fds[0])
    return Identity(stand_in, variables, fds)
