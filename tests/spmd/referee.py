"""The process that meets all ranks before and after each test, and decides what became of it.

Rank 0 starts it. It uses the standard library only, and goes on when ranks hang or die:

    python referee.py ADDRESS SIZE RESULTS FOLDER START_SECONDS IDLE_SECONDS

ADDRESS is that of spmd.channel; RESULTS is a file for one line of JSON per test, or empty; FOLDER
is where the folder for the ranks' common files is made, or empty. Every rank sends one message per
round, and gets one answer:

    {"meet": "hello", "rank", "pid", "host", "dump"}         -> {"folder": ""}

    {"meet": "collected", "ids": [...], "error": ""}         -> {}
    {"meet": "begin", "nodeid", "location", "keywords", "timeout"}  -> {}
    {"meet": "end", "nodeid", "outcome", "reports", "text"}  -> {"reports": [...]}
    {"meet": "bye"}                                          -> {}

An answer with "abort" ends the run; its text says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from spmd import place
from spmd.channel import encode, listen
from spmd.verdict import judge, rank_names, synthetic

Message = dict[str, Any]

DUMP_SIGNAL = signal.SIGRTMAX - 1
# After one rank has failed or died, the others, perhaps stuck in a collective with it, get this.
STRAGGLER_SECONDS = float(os.environ.get("HVD_SPMD_STRAGGLER_SECONDS", "10"))
DUMP_SECONDS = 0.5
# Parts of stack lines that tell nothing about the test.
NOISE = ("/_pytest/", "/pluggy/", "/pytest/__main__.py", "/spmd/inner.py", "<frozen runpy>")


class Peer:
    """One rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.rank = -1
        self.pid = 0
        self.dump = ""
        self.is_here = False
        self.gone = False

    def stack(self) -> str:
        """Where the rank is now, as far as it can be found out."""
        if not self.is_here:
            return "(its stack is not known: it is on another host)"
        try:
            os.kill(self.pid, DUMP_SIGNAL)
            time.sleep(DUMP_SECONDS)
            with open(self.dump, encoding="utf-8", errors="replace") as file:
                lines = [line for line in file if not any(part in line for part in NOISE)]
                return "".join(lines).strip() or "(it did not print its stack)"
        except OSError as error:
            return f"(its stack is not known: {error})"

    def kill(self) -> None:
        """Ends the rank, if it is on this host; elsewhere its launcher has to."""
        if self.is_here:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


class Referee:
    """All ranks of one run."""

    def __init__(self, listener: socket.socket, size: int, results: str) -> None:
        self._listener = listener
        self._size = size
        self._results = results
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, Peer] = {}
        self._round: dict[int, Message] = {}  # in the order in which they came
        self._begin: Message = {}

    def run(self, start_seconds: float, idle_seconds: float, folder: str) -> None:
        """Holds round after round until the ranks leave, or have to be told to."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        if not self._gather("to start", start_seconds, lambda: len(self._peers) == self._size):
            return
        self._answer({"folder": folder})
        if not self._meet("to collect the tests", start_seconds) or not self._same_collection():
            return
        self._answer({})
        while self._meet("to begin a test", idle_seconds):
            kinds = {message["meet"] for message in self._round.values()}
            if kinds == {"bye"}:
                self._answer({})
                return
            if not self._same_test():
                return
            self._begin = self._round[0]
            self._answer({})
            if not self._play():
                return

    def _same_collection(self) -> bool:
        errors = [
            f"rank {rank}: {message['error']}"
            for rank, message in sorted(self._round.items())
            if message["error"]
        ]
        first = self._round[0]["ids"]
        errors += [
            f"rank {rank} has collected other tests than rank 0: "
            f"{sorted(set(message['ids']) ^ set(first)) or 'in another order'}"
            for rank, message in sorted(self._round.items())
            if message["ids"] != first and not errors
        ]
        if errors:
            self._abort("\n".join(errors))
        return not errors

    def _same_test(self) -> bool:
        ids = {rank: message.get("nodeid", "no test") for rank, message in self._round.items()}
        if len(set(ids.values())) == 1:
            return True
        text = ", ".join(f"rank {rank} begins {nodeid}" for rank, nodeid in sorted(ids.items()))
        self._abort(f"the ranks do not begin the same test: {text}")
        return False

    def _play(self) -> bool:
        """One test, from the begin of all ranks to the verdict; whether the run goes on."""
        timeout = self._begin["timeout"]
        complete = self._wait(timeout)
        missing = {} if complete else self._missing(f"did not end the test within {timeout:g} s")
        messages = [{**message, "rank": rank} for rank, message in self._round.items()]
        reports = judge(self._begin, messages, missing)
        self._record({"nodeid": self._begin["nodeid"], "reports": reports, "abort": bool(missing)})
        answer: Message = {"reports": reports}
        if missing:
            answer["abort"] = f"{rank_names(list(missing))} did not end {self._begin['nodeid']}"
        self._answer(answer)
        return complete

    # Rounds

    def _meet(self, purpose: str, seconds: float) -> bool:
        return self._gather(purpose, seconds, lambda: True)

    def _gather(self, purpose: str, seconds: float, also: Any) -> bool:
        """Waits for a message of every rank; if one does not come, ends the run."""
        if self._wait(seconds) and also():
            return True
        missing = self._missing(f"did not come within {seconds:g} s {purpose}")
        text = "\n\n".join(missing[rank] for rank in sorted(missing))
        begins = [message for message in self._round.values() if message["meet"] == "begin"]
        if begins:
            reports = synthetic(begins[0], text)
            self._record({"nodeid": begins[0]["nodeid"], "reports": reports, "abort": True})
        self._abort(text)
        return False

    def _wait(self, seconds: float) -> bool:
        """Whether a message of every rank came in time."""
        until = time.monotonic() + seconds
        hurried = False
        while len(self._round) < self._size:
            gone = {rank for rank, peer in self._peers.items() if peer.gone}
            if len(gone | set(self._round)) == self._size:
                return False
            failed = [1 for message in self._round.values() if message.get("outcome") == "failed"]
            if (gone or failed) and not hurried:
                hurried = True
                until = min(until, time.monotonic() + STRAGGLER_SECONDS)
            left = until - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self._selector.select(left):
                key.data()
        return True

    def _missing(self, what: str) -> dict[int, str]:
        """What is known of the ranks that have not sent a message; those that hang are killed."""
        missing = {}
        for rank in range(self._size):
            peer = self._peers.get(rank)
            if rank in self._round:
                continue
            if peer is None:
                missing[rank] = f"rank {rank} {what}"
            elif peer.gone:
                missing[rank] = f"rank {rank} (pid {peer.pid}) ended"
            else:
                text = f"rank {rank} (pid {peer.pid}) {what}; it was at\n{peer.stack()}"
                missing[rank] = text
                peer.kill()
        return missing

    def _answer(self, message: Message) -> None:
        self._round.clear()
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.connection.sendall(encode(message))

    def _abort(self, text: str) -> None:
        self._record({"nodeid": None, "reports": [], "abort": True, "text": text})
        self._answer({"abort": text})

    def _record(self, line: Message) -> None:
        if self._results:
            with open(self._results, "ab") as file:
                file.write(encode(line))

    # Connections

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        peer = Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(peer))

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._lose(peer)
            return
        *lines, peer.buffer = (peer.buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["meet"] == "hello":
                self._welcome(peer, message)
            self._round[peer.rank] = message

    def _welcome(self, peer: Peer, hello: Message) -> None:
        peer.rank, peer.pid, peer.dump = hello["rank"], hello["pid"], hello["dump"]
        peer.is_here = hello["host"] == place.host()
        self._peers[peer.rank] = peer
        if not peer.is_here:
            return
        # A child that the rank has forked may keep the connection open.
        with contextlib.suppress(OSError, AttributeError):
            pidfd = os.pidfd_open(peer.pid)
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._lose(peer, pidfd))

    def _lose(self, peer: Peer, pidfd: int = -1) -> None:
        peer.gone = True
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pidfd if pidfd >= 0 else peer.connection)


def main() -> None:
    """Runs the referee; see the top of this file."""
    address, size, results, parent, start_seconds, idle_seconds = sys.argv[1:]
    listener = listen(address, int(size))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = tempfile.mkdtemp(prefix="hvd-spmd-", dir=parent or None)
    try:
        referee = Referee(listener, int(size), results)
        referee.run(float(start_seconds), float(idle_seconds), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
