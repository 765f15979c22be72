"""What each task of a Spark job does: it runs its rank, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hvd_keras.launch import environment, processes
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.report import describe
from hvd_keras.runner.driver import DriverAddress, Link
from hvd_keras.runner.driver_log import receiving
from hvd_keras.runner.errors import RankFailedError
from hvd_keras.runner.mpi import Meeting, Member, Seat, rank_order
from hvd_keras.runner.placement import Host, this_host
from hvd_keras.runner.worker import CALL, failure_file, result_file

__all__ = ["Task"]


class _Place(NamedTuple):
    """Which rank this task is, among whom."""

    rank: int
    members: list[Member]

    @property
    def is_on_one_host(self) -> bool:
        return len({member.host.identity for member in self.members}) == 1

    @property
    def local_size(self) -> int:
        hosts = [member.host.identity for member in self.members]
        return hosts.count(hosts[self.rank])


class Task:
    """What each barrier task runs; pickled by Spark."""

    shows_output = True
    executable: str | None = None

    def __init__(
        self,
        content: bytes,
        size: int,
        meeting: Meeting,
        env: dict[str, str],
        driver: DriverAddress,
    ) -> None:
        self._content = content
        self._size = size
        self._meeting = meeting
        self._env = env
        self._driver = driver

    def __call__(self, _: Iterator[int]) -> Iterator[tuple[int, bytes]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        address = context.getTaskInfos()[context.partitionId()].address.rpartition(":")[0]
        seat = Seat(self._meeting, address, this_host())
        try:
            place = _place(context, seat)
            with self._driver.connected(place.rank) as link:
                result = self._result(place, seat, link)
            if not place.is_on_one_host:
                # Whoever is done first must not end MPI's daemons: the others may need them.
                context.barrier()
                seat.leave()
        finally:
            seat.close()
        yield place.rank, result

    def _result(self, place: _Place, seat: Seat, link: Link) -> bytes:
        """Runs the rank and returns what its function has returned, packed."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / CALL).write_bytes(self._content)
            with receiving(folder, link.log) as log_address:
                env, fds = self._rank_environment(place, seat, link)
                env["HVD_DRIVER_LOG"] = log_address
                returncode = self._run_rank(place.rank, folder, env, fds, link.log, seat)
            if returncode:
                path = failure_file(folder, place.rank)
                text = path.read_text() if path.exists() else ""
                how = f":\n\n{text}" if text else "; its output says why"
                raise self._failed(
                    link, place.rank, f"has failed, with {describe(returncode)}{how}", returncode
                )
            return result_file(folder, place.rank).read_bytes()

    def _rank_environment(
        self, place: _Place, seat: Seat, link: Link
    ) -> tuple[dict[str, str], list[int]]:
        """The environment of the rank, and the descriptors that it inherits."""
        base = {**environment.current_environment(), **self._env}
        base["PYTHONPATH"] = os.pathsep.join(_paths_for_ranks())
        cores = len(os.sched_getaffinity(0))
        if place.is_on_one_host:
            seat.close()
            segment = f"shm:{self._meeting.name}"
            env = environment.rank_environment(base, place.rank, self._size, segment, cores)
            return env, []
        try:
            identity = seat.take(place.members, place.rank, base, self.executable)
        except (LaunchError, OSError) as error:  # TimeoutError is one, too
            text = f"could not be started: {error}"
            raise self._failed(link, place.rank, text) from error
        base = {**environment.outside_of_jobs(base), **identity.variables}
        return environment.mpi_rank_environment(base, place.local_size, cores), identity.fds

    def _run_rank(
        self,
        rank: int,
        folder: Path,
        env: Mapping[str, str],
        fds: list[int],
        show: Callable[[str], None],
        seat: Seat,
    ) -> int:
        process = subprocess.Popen(
            [self.executable or sys.executable, "-m", "hvd_keras.runner", str(folder), str(rank)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=fds,
            # A Spark worker's other threads hold no lock that Python needs after fork.
            preexec_fn=_dies_with(os.getpid()),
        )
        seat.release_fds()
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{rank}] {line}", end="", file=sys.stderr, flush=True)  # the task's own log
            if self.shows_output:
                show(f"[{rank}] {line.rstrip()}")
        return process.wait()

    def _failed(
        self, link: Link, rank: int, what: str, returncode: int | None = None
    ) -> RankFailedError:
        """Tells the driver, and returns what is to be raised."""
        error = RankFailedError(f"rank {rank} of {self._size} {what}", rank, returncode)
        link.failed(str(error), returncode)
        link.wait_for_cause()  # Spark ends all tasks as soon as one has failed
        return error


def _place(context: Any, seat: Seat) -> _Place:
    """Asks all tasks where they are."""
    told = [json.loads(text) for text in context.allGather(json.dumps(seat.member))]
    members = [Member(Host(*host), address, port) for host, address, port in told]
    order = rank_order([member.host for member in members])
    return _Place(order.index(context.partitionId()), [members[index] for index in order])


def _dies_with(parent: int) -> Callable[[], None]:
    return lambda: processes.prepare_rank(parent)


def _paths_for_ranks() -> list[str]:
    """Where the ranks look for modules: what Spark has distributed, but not Spark itself."""
    given = [path for path in sys.path if path and os.path.exists(path)]
    return [path for path in given if "pyspark" not in path and "py4j" not in path]
