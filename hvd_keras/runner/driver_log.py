"""Messages from the ranks to the program that started them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_keras.settings import Settings

__all__ = ["LONGEST_MESSAGE", "log_to_driver", "receiving"]

LONGEST_MESSAGE = 4000  # characters
_POLL_SECONDS = 0.2


def log_to_driver(message: str) -> None:
    """Shows a message where the job was started, from whichever rank calls it.

    Args:
        message: text; what is beyond 4,000 characters is cut off. Without a runner it is printed.
    """
    text = str(message)[:LONGEST_MESSAGE]
    address = Settings.from_environment().driver_log
    if not address:
        print(text, flush=True)
        return
    # The driver may be gone, and the job about to end.
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError), channel:
        channel.sendto(text.encode(errors="replace"), address)


@contextlib.contextmanager
def receiving(folder: Path, show: Callable[[str], None]) -> Iterator[str]:
    """Calls ``show`` with each message, in a thread; yields the address for the ranks.

    Args:
        folder: a folder that only this user can enter.
    """
    address = str(folder / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(_POLL_SECONDS)
        ended = threading.Event()
        thread = threading.Thread(target=_receive, args=(channel, show, ended), daemon=True)
        thread.start()
        try:
            yield address
        finally:
            ended.set()
            thread.join()


def _receive(channel: socket.socket, show: Callable[[str], None], ended: threading.Event) -> None:
    while True:
        try:
            show(channel.recv(4 * LONGEST_MESSAGE).decode(errors="replace"))
        except TimeoutError:
            if ended.is_set():
                return
