"""A worker of a Ray job: an actor, whose process is a rank for as long as the actor lives."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray

from hvd_keras.launch import environment
from hvd_keras.launch.errors import LaunchError
from hvd_keras.runner.errors import RankFailedError
from hvd_keras.runner.mpi import Meeting, Member, Seat
from hvd_keras.runner.placement import this_host
from hvd_keras.runner.worker import CallFailedError, run_call, use_alias_if_asked

__all__ = ["Place", "Unpacked", "Worker"]


class Place(NamedTuple):
    """Where a worker is.

    Attributes:
        member: its host, and how others reach it.
        node: Ray's name of the node.
        pid: its process.
        gpus: the numbers of the GPUs that Ray has given it.
    """

    member: Member
    node: str
    pid: int
    gpus: list[str]


class Worker:
    """The actor. Its methods run one after the other, in the main thread of its process."""

    def __init__(self, meeting: Meeting) -> None:
        self._rank, self._size = 0, 1
        self._executable: Any = None
        self._seat = Seat(meeting, ray.util.get_node_ip_address(), this_host())
        self._identity: dict[str, str] = {}

    def place(self) -> Place:
        """Says where this worker is."""
        context = ray.get_runtime_context()
        gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
        return Place(self._seat.member, context.get_node_id(), os.getpid(), gpus)

    def take_seat(self, members: Sequence[Member], rank: int, env: Mapping[str, str]) -> None:
        """Lets MPI join this process with those on other hosts; see hvd_keras.runner.mpi."""
        try:
            env = {**environment.current_environment(), **env}
            self._identity = self._seat.take(members, rank, env).variables
        except (LaunchError, OSError) as error:  # TimeoutError is one, too
            text = f"rank {rank} of {len(members)} (pid {os.getpid()}) could not be started"
            raise RankFailedError(f"{text}: {error}", rank) from error

    def become_rank(
        self,
        rank: int,
        size: int,
        local_size: int,
        segment: str,
        env: Mapping[str, str],
        cores: int,
    ) -> None:
        """Makes this process a rank, or, after a failure, a rank of a new group.

        Args:
            rank, size, local_size: its place; ``local_size`` ranks are on its host.
            segment: of the shared memory, if all ranks are on one host.
            env: more environment variables.
            cores: how many this rank may use.
        """
        self._leave()
        now = environment.current_environment()
        threads = {n: str(cores) for n in environment.THREAD_VARIABLES if n not in now}
        env = {**threads, **env}
        if self._identity:
            environment.become_mpi_rank({**env, **self._identity}, local_size, cores * local_size)
        else:
            self._seat.close()
            environment.become_rank(env, rank, size, segment, cores * size)
        self._rank, self._size = rank, size
        use_alias_if_asked()

    def make_executable(self, call: bytes) -> None:
        """Makes the object that ``execute`` hands to its functions."""
        self._executable = self._run(call, pack=lambda made: made)

    def run(self, call: bytes) -> Unpacked:
        """Runs a packed call."""
        return Unpacked(self._run(call))

    def run_packed(self, call: bytes) -> bytes:
        """Runs a packed call, and returns the packed result."""
        return self._run(call)

    def execute(self, call: bytes) -> Unpacked:
        """Runs a packed call with the executable as its first argument."""
        return Unpacked(self._run(call, self._executable))

    def leave(self) -> None:
        """Leaves the group of ranks, as the end of a script does."""
        self._executable = None
        self._leave()
        self._seat.close()

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


class Unpacked:
    """A packed result, which is what was packed where it arrives."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple:
        return pickle.loads, (self._content,)
