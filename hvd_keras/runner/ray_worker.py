"""A worker of a Ray job: an actor, whose process is a rank for as long as the actor lives."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray

from hvd_keras.launch import environment
from hvd_keras.runner.errors import RankFailedError
from hvd_keras.runner.one_host import Host, this_host
from hvd_keras.runner.worker import CallFailedError, run_call, use_alias_if_asked

__all__ = ["Place", "Worker"]


class Place(NamedTuple):
    """Where a worker is.

    Attributes:
        host: which others it can share memory with.
        node: Ray's name of the node.
        pid: its process.
        gpus: the numbers of the GPUs that Ray has given it.
    """

    host: Host
    node: str
    pid: int
    gpus: list[str]


class Worker:
    """The actor. Its methods run one after the other, in the main thread of its process."""

    def __init__(self) -> None:
        self._rank, self._size = 0, 1
        self._executable: Any = None

    def place(self) -> Place:
        """Says where this worker is."""
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        return Place(this_host(), context.get_node_id(), os.getpid(), [str(gpu) for gpu in gpus])

    def become_rank(
        self, rank: int, size: int, segment: str, env: Mapping[str, str], cores: int
    ) -> None:
        """Makes this process a rank, or, after a failure, a rank of a new group."""
        self._leave()
        environment.become_rank(env, rank, size, segment, cores)
        self._rank, self._size = rank, size
        use_alias_if_asked()

    def make_executable(self, call: bytes) -> None:
        """Makes the object that ``execute`` hands to its functions."""
        self._executable = self._run(call, pack=lambda made: made)

    def run(self, call: bytes) -> _Unpacked:
        """Runs a packed call."""
        return _Unpacked(self._run(call))

    def execute(self, call: bytes) -> _Unpacked:
        """Runs a packed call with the executable as its first argument."""
        return _Unpacked(self._run(call, self._executable))

    def leave(self) -> None:
        """Leaves the group of ranks, as the end of a script does."""
        self._executable = None
        self._leave()

    def _run(self, call: bytes, *before: Any, **options: Any) -> Any:
        try:
            return run_call(call, *before, **options)
        except CallFailedError as error:
            raise RankFailedError(
                f"rank {self._rank} of {self._size} (pid {os.getpid()}) has failed:\n\n{error}",
                self._rank,
            ) from None

    @staticmethod
    def _leave() -> None:
        if "hvd_keras.world" in sys.modules:  # the function may have done without it
            from hvd_keras import world

            world.shutdown()


class _Unpacked:
    """A packed result, which is what was packed where it arrives."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple:
        return pickle.loads, (self._content,)
