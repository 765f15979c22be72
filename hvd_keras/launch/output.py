"""Carrying the ranks' output to where the launcher writes: whole lines, nothing lost.

A :class:`RankStream` reads one pipe of one rank and cuts it into lines; a :class:`Sink` queues
what goes to one descriptor of the launcher and writes it without ever blocking the supervisor.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import stat
import time
from collections.abc import Callable

_READ_BYTES = 1 << 16
# A pipe that polls as writable takes this much without blocking (PIPE_BUF).
_WRITE_BYTES = 4096
_WRITES_PER_EVENT = 64
_QUEUE_HIGH = 1 << 20
_LONGEST_LINE = 1 << 24
TAIL_LINES = 400
TAIL_LINE_BYTES = 2000
_ONSETS = (b"Traceback (most recent call last)", b"Fatal Python error")


# Takes whole lines and returns those that are to be shown.
LineFilter = Callable[[list[bytes]], list[bytes]]


class LineSplitter:
    """Cuts a byte stream into lines; a line ends with LF, CR LF, or CR (a progress bar).

    A line of more than 16 MiB is cut.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that ``data`` completes, with their ends."""
        if self._pieces and self._pieces[-1].endswith(b"\r"):
            data = self._pieces.pop() + data
            self._held -= 1
        lines = data.splitlines(keepends=True)
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        # What follows a final CR is not known yet: it may be the LF that belongs to it.
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = self._take()
        if rest:
            head, cr = (rest[:-1], rest[-1:]) if rest.endswith(b"\r") else (rest, b"")
            self._pieces.extend(piece for piece in (head, cr) if piece)
            self._held += len(rest)
        if self._held > _LONGEST_LINE:
            lines.append(self._take() + b"\n")
        return lines

    def flush(self) -> list[bytes]:
        """Returns the unfinished line, if there is one, with an end."""
        if not self._pieces:
            return []
        return [self._take().removesuffix(b"\r") + b"\n"]

    def _take(self) -> bytes:
        line = b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        return line


class Sink:
    """A descriptor that may be slow or stuck, with a queue in front of it.

    The descriptor stays in blocking mode, since it is shared with whoever started the launcher;
    instead no more is written than what it is known to take.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.error: OSError | None = None
        self._queue: collections.deque[memoryview] = collections.deque()
        self.queued = 0
        self.writer: object = None
        self.writer_lines = 0
        self._always_ready = stat.S_ISREG(os.fstat(fd).st_mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def same_file(self, fd: int) -> bool:
        """Whether writing to ``fd`` would mix with what is written here."""
        return os.path.sameopenfile(self.fd, fd)

    @property
    def full(self) -> bool:
        """Whether whoever feeds the sink should pause."""
        return self.queued > _QUEUE_HIGH

    def note(self, writer: object, lines: int) -> None:
        """Remembers who wrote last, and how many lines in a row."""
        self.writer_lines = lines + (self.writer_lines if writer is self.writer else 0)
        self.writer = writer

    def put(self, data: bytes) -> None:
        """Queues ``data`` behind what is there; drops it if the descriptor is broken."""
        if data and self.error is None:
            self._queue.append(memoryview(data))
            self.queued += len(data)
            self.pump()

    def pump(self) -> None:
        """Writes as much as the descriptor takes now."""
        left = _WRITES_PER_EVENT
        while self._queue and (self._always_ready or (left > 0 and self._poll.poll(0))):
            left -= 1
            block = self._queue[0]
            try:
                written = os.write(self.fd, block if self._always_ready else block[:_WRITE_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                self.error = error
                self._queue.clear()
                self.queued = 0
                return
            self.queued -= written
            if written < len(block):
                self._queue[0] = block[written:]
            else:
                self._queue.popleft()


class PacketSink(Sink):
    """A pipe to an MPI launcher, through which it gets whole lines only.

    Launchers pass on whatever one read gave them, so that the lines of several ranks would cut into
    each other. So nothing is written before all that came earlier has been read: the pipe is made
    to hold one page, and then polls as writable when it is empty. Longer lines go in pieces
    (:func:`hvd_keras.launch.rank_reports.cut_line`).

    Args:
        fd: the pipe.
        cut: cuts a line into lines of no more than a number of bytes.
    """

    def __init__(self, fd: int, cut: Callable[[bytes, int], list[bytes]]) -> None:
        super().__init__(fd)
        self._cut = cut
        with contextlib.suppress(OSError):  # no pipe: then as well as it goes
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _WRITE_BYTES)

    def put(self, data: bytes) -> None:
        """See the base class; ``data`` are whole lines."""
        for line in data.splitlines(keepends=True):
            for piece in self._cut(line, _WRITE_BYTES):
                if self.error is not None:
                    return
                # The first may have been written in part.
                if len(self._queue) > 1 and len(self._queue[-1]) + len(piece) <= _WRITE_BYTES:
                    self._queue[-1] = memoryview(bytes(self._queue[-1]) + piece)
                else:
                    self._queue.append(memoryview(piece))
                self.queued += len(piece)
        self.pump()


class RankStream:
    """The standard output or error of one rank, on its way to a sink.

    Attributes:
        rank: the rank.
        fd: the reading end of the pipe, -1 once it is closed.
        sink: where lines go.
        sinks: all sinks that must not be full for the pipe to be read.
        onset: when the last traceback began (``time.monotonic``), or None.
        line_filter: what all lines go through first, or None.
    """

    def __init__(
        self, rank: int, name: str, fd: int, sink: Sink, label: bytes | None, timestamps: bool
    ) -> None:
        self.rank = rank
        self.name = name
        self.fd = fd
        self.sink = sink
        self.sinks = [sink]
        self.onset: float | None = None
        self.line_filter: LineFilter | None = None
        self._label = label
        self._timestamps = timestamps
        self._splitter = LineSplitter()
        self._file = -1
        self._tail: collections.deque[bytes] | None = None
        os.set_blocking(fd, False)

    def copy_to(self, path: str) -> None:
        """Also writes the stream, as it is, to the file ``path``."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def keep_tail(self) -> None:
        """Also remembers the last lines, and when a traceback began."""
        self._tail = collections.deque(maxlen=TAIL_LINES)

    def wrote_last(self, lines: int) -> bool:
        """Whether the last ``lines`` lines that its sink has received are this stream's."""
        return self.sink.writer is self and self.sink.writer_lines >= lines

    @property
    def tail(self) -> list[str]:
        """The last lines, without their ends."""
        return [line.decode(errors="replace").rstrip("\r\n") for line in self._tail or ()]

    def read(self) -> bool:
        """Moves what the pipe holds, up to 64 KiB; returns whether there may be more."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._emit(self._splitter.feed(data))
        if self._file >= 0:
            write_all(self._file, data)
        return True

    def close(self) -> None:
        """Closes the pipe after passing on an unfinished last line."""
        if self.fd >= 0:
            self._emit(self._splitter.flush())
            os.close(self.fd)
            self.fd = -1
            self.stop_copy()

    def stop_copy(self) -> None:
        """Closes the file of :meth:`copy_to`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _emit(self, lines: list[bytes]) -> None:
        if self.line_filter is not None:
            lines = self.line_filter(lines)
        if self._tail is not None:
            self._remember(lines, self._tail)
        if lines:
            self.sink.note(self, len(lines))
        prefix = self._prefix()
        # An empty line ended by CR is how a progress bar begins: nothing to show.
        self.sink.put(b"".join([prefix + line for line in lines if line != b"\r"]))

    def _remember(self, lines: list[bytes], tail: collections.deque[bytes]) -> None:
        for line in lines[-TAIL_LINES:]:
            if is_onset(line):
                self.onset = time.monotonic()
            tail.append(line[:TAIL_LINE_BYTES])

    def _prefix(self) -> bytes:
        if self._label is None:
            return b""
        if not self._timestamps:
            return self._label + b" "
        now = time.time()
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        return f"{clock}.{int(now * 1000) % 1000:03d} ".encode() + self._label + b" "


def is_onset(line: bytes) -> bool:
    """Whether a traceback begins with this line."""
    return line.startswith(_ONSETS)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of ``data``, however often that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
