"""The output of all ranks of a job, from their pipes to the launcher's descriptors."""

from __future__ import annotations

import functools
import os
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.job import Job
from hvd_keras.launch.output import RankStream, Sink


class OutputPump:
    """All rank streams and the two sinks, as users of one selector.

    The selector's keys hold a callback without arguments as data.

    Args:
        job: says how lines are marked, and where copies go.
        selector: the supervisor's.
        on_error: called with a sentence when output is lost.
        sink: where both streams go; None for this process's own.
    """

    def __init__(
        self,
        job: Job,
        selector: selectors.BaseSelector,
        on_error: Callable[[str], None],
        sink: Sink | None = None,
    ) -> None:
        self._job = job
        self._selector = selector
        self._on_error = on_error
        self._stdout = sink or Sink(1)
        # Two queues to one terminal would cut into each other's lines.
        self._stderr = self._stdout if sink or self._stdout.same_file(2) else Sink(2)
        self._streams: list[RankStream] = []

    def add(self, rank: int, name: str, fd: int) -> RankStream:
        """Begins to carry what comes through ``fd``; ``name`` is "stdout" or "stderr".

        Raises:
            LaunchError: the file for the copy cannot be made.
        """
        label = f"[{rank}]<{name}>:".encode() if self._job.prefix else None
        sink = self._stderr if name == "stderr" else self._stdout
        stream = RankStream(rank, name, fd, sink, label, self._job.timestamps)
        self._streams.append(stream)
        if self._job.output_dir is not None:
            path = os.path.join(self._job.output_dir, f"rank.{rank}", name)
            try:
                stream.copy_to(path)
            except OSError as error:
                raise LaunchError(
                    f"the output file {path} cannot be made: {error.strerror}."
                ) from error
        self._watch(fd, selectors.EVENT_READ, functools.partial(self._read, stream))
        return stream

    def read_pending(self) -> None:
        """Reads what the pipes hold now, without waiting for their writers to be gone."""
        for stream in self._streams:
            while stream.fd >= 0 and self._read(stream):
                pass

    def put_line(self, line: bytes, *, to_stdout: bool = False) -> None:
        """Writes a line as it is."""
        (self._stdout if to_stdout else self._stderr).put(line)

    def may_fill_stdout(self, stream: RankStream) -> None:
        """Some lines of ``stream`` go to standard output by :meth:`put_line`."""
        stream.sinks.append(self._stdout)

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to standard error."""
        self._stderr.note(self, 1)
        self._stderr.put(text.encode(errors="replace") + b"\n")

    @property
    def queued(self) -> int:
        """Bytes that wait to be written."""
        return self._stdout.queued + self._stderr.queued

    def pace(self) -> None:
        """Before waiting for events: a rank is read only while its lines can be written on."""
        watched = self._watched()
        for sink in (self._stdout, self._stderr):
            if bool(sink.queued) != (sink.fd in watched):
                if sink.queued:
                    self._watch(sink.fd, selectors.EVENT_WRITE, sink.pump)
                else:
                    self._selector.unregister(sink.fd)
        for stream in self._streams:
            full = any(sink.full for sink in stream.sinks)
            if stream.fd >= 0 and full == (stream.fd in watched):
                if full:
                    self._selector.unregister(stream.fd)
                else:
                    callback = functools.partial(self._read, stream)
                    self._watch(stream.fd, selectors.EVENT_READ, callback)

    def drain(self) -> None:
        """Reads what the pipes still hold once their writers are gone, and closes them."""
        for stream in self._streams:
            while stream.fd >= 0 and self._read(stream):
                pass
            if stream.fd >= 0:  # someone outside the job still holds the other end
                if stream.fd in self._watched():
                    self._selector.unregister(stream.fd)
                stream.close()

    def _watched(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()

    def _watch(self, fd: int, events: int, callback: Callable[[], object]) -> None:
        self._selector.register(fd, events, callback)

    def _read(self, stream: RankStream) -> bool:
        fd = stream.fd
        try:
            more = stream.read()
        except OSError as error:  # only a copy in a file can fail: the disk is full
            more = True
            stream.stop_copy()
            self._on_error(f"cannot write {stream.name} of rank {stream.rank}: {error.strerror}")
        if stream.fd < 0 and fd in self._watched():
            self._selector.unregister(fd)
        for broken in filter(None, (sink.error for sink in stream.sinks)):
            self._on_error(f"cannot write the output of the ranks: {broken.strerror}")
        return more
