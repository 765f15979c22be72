"""The workers of a Ray job: how they start, meet, answer and end."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hvd_keras.launch.job import DEFAULT_REPORT_SECONDS
from hvd_keras.runner import ray_placement
from hvd_keras.runner.errors import RankFailedError, first_failure
from hvd_keras.runner.mpi import Meeting, rank_order
from hvd_keras.runner.ray_placement import Plan
from hvd_keras.runner.ray_worker import Place, Unpacked, Worker

__all__ = ["WorkerGroup"]

_LEAVE_SECONDS = 5.0


class WorkerGroup:
    """The workers, which are the ranks of one job at a time.

    Args:
        plan: how many, and what each needs.
        uses_current_group: whether they go into the placement group that this runs in, if any.
        seconds: how long to wait for the resources and for the start.
    """

    def __init__(self, plan: Plan, uses_current_group: bool, seconds: float) -> None:
        self._plan = plan
        self._uses_current_group = uses_current_group
        self._seconds = seconds
        self._own_group: PlacementGroup | None = None
        self._workers: list[Any] = []  # by rank
        self._places: list[Place] = []  # likewise
        self._env: dict[str, str] = {}
        self._unheard: list[list[Any]] = []  # results that only the caller waits for
        self._ended = ""  # why there are no workers

    def __len__(self) -> int:
        return len(self._workers)

    def require(self) -> None:
        """Checks that there are workers.

        Raises:
            RuntimeError: there are none, and why.
        """
        if not self._workers:
            raise RuntimeError(
                f"there are no workers, since {self._ended}: call start()"
                if self._ended
                else "there are no workers yet: call start() first"
            )

    # Starting

    def start(self, env: Mapping[str, str]) -> None:
        """Starts the actors, puts them into the order of the ranks, and tells them who they are.

        Args:
            env: environment variables of the ranks.
        """
        self._ended = ""
        self._env = dict(env)
        plan = self._plan
        group = ray_placement.current_group(plan) if self._uses_current_group else None
        is_own = group is None
        if group is None:
            ray_placement.require_room(plan)
            group = self._own_group = ray_placement.make_group(plan, self._seconds)
        actor = ray.remote(Worker)
        meeting = Meeting(self._seconds)
        for index in range(plan.workers):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=group,
                placement_group_bundle_index=index // plan.workers_per_bundle if is_own else -1,
            )
            needs = {"num_cpus": plan.worker["CPU"], "num_gpus": plan.worker.get("GPU", 0)}
            made = actor.options(scheduling_strategy=strategy, **needs).remote(meeting)
            self._workers.append(made)
        places = self._places_of_workers()
        order = rank_order([p.member.host for p in places], [p.node for p in places])
        self._workers = [self._workers[index] for index in order]
        self._places = [places[index] for index in order]
        if len({place.member.host.identity for place in places}) > 1:
            members = [place.member for place in self._places]
            self.collect(
                [
                    worker.take_seat.remote(members, rank, self._env)
                    for rank, worker in enumerate(self._workers)
                ]
            )
        self._meet()

    def _places_of_workers(self) -> list[Place]:
        asked = [worker.place.remote() for worker in self._workers]
        ready, late = ray.wait(asked, num_returns=len(asked), timeout=self._seconds)
        try:
            places = dict(zip(ready, ray.get(ready), strict=True))
        except ray.exceptions.RayError as error:
            raise RankFailedError(f"a Ray worker could not be started: {error}") from error
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(asked)} Ray workers did not start within "
                f"{self._seconds:g} s (placement_group_timeout_s), though their placement "
                "group is there; Ray's logs may say why, or tasks of this group use its resources"
            )
        return [places[ref] for ref in asked]

    def _meet(self) -> None:
        """Tells the workers who they are; also after a failure, when they meet anew."""
        size = len(self._workers)
        segment = f"shm:{secrets.token_hex(16)}"
        told = []
        for rank, worker in enumerate(self._workers):
            neighbours = self._neighbours(rank)
            env = dict(self._env)
            # Ray shows each worker its own GPUs only, where scripts expect to choose by local rank.
            gpus = dict.fromkeys(gpu for place in neighbours for gpu in place.gpus)
            if gpus:
                env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus))
            cores = max(1, int(self._plan.worker["CPU"]))
            told.append(worker.become_rank.remote(rank, size, len(neighbours), segment, env, cores))
        ray.get(told)

    def _neighbours(self, rank: int) -> list[Place]:
        """The workers of a rank's host, that one among them."""
        host = self._places[rank].member.host.identity
        return [place for place in self._places if place.member.host.identity == host]

    # Running

    def on_all(self, method: str, call: bytes) -> list[Any]:
        """Calls a method of all workers, and returns the references to what they return."""
        stored = ray.put(call)
        return [getattr(worker, method).remote(stored) for worker in self._workers]

    def on_first(self, method: str, call: bytes) -> list[Any]:
        """Likewise, of rank 0 only."""
        return [getattr(self._workers[0], method).remote(call)]

    def collect(self, refs: list[Any]) -> list[Any]:
        """Returns the results; after a failure the workers are made ready for more, or ended."""
        try:
            failures, late = _wait(refs, self._names())
            failure = first_failure(failures)
            if failure is None:
                return ray.get(refs)
            if late or any(isinstance(failure, _WorkerDiedError) for failure in failures):
                self.end(f"rank {failure.rank} has failed and not all others ended by themselves")
            else:
                self._meet()
        except (ray.exceptions.RayError, KeyboardInterrupt, SystemExit) as error:
            # Ctrl-C: the ranks are not left running what nobody waits for.
            self.end(f"the job was interrupted ({type(error).__name__})")
            raise
        raise failure

    def watched(self, refs: list[Any]) -> list[Any]:
        """References to packed results that come, unpacked, when all are there, or fail together.

        What a failure means for the workers is seen to by ``settle``.
        """
        self._unheard.append(refs)
        count = len(refs)
        # It needs nothing, and must not take a place in the caller's placement group.
        options = {"num_cpus": 0, "num_returns": count, "max_retries": 0}
        watcher = ray.remote(_watch).options(scheduling_strategy="DEFAULT", **options)
        made = watcher.remote([refs], self._names())
        return made if count > 1 else [made]

    def settle(self) -> None:
        """Waits for what ``watched`` watches; the next function then finds a sound group."""
        unheard, self._unheard = self._unheard, []
        for refs in unheard:
            with contextlib.suppress(RankFailedError):  # the caller hears of it by his references
                self.collect(refs)
            if not self._workers:
                return

    def _names(self) -> list[str]:
        size = len(self._workers)
        return [f"rank {rank} of {size} (pid {p.pid})" for rank, p in enumerate(self._places)]

    # Ending

    def shutdown(self) -> None:
        """Lets the workers leave their group, and ends them."""
        if self._workers:
            left = [worker.leave.remote() for worker in self._workers]
            ray.wait(left, num_returns=len(left), timeout=_LEAVE_SECONDS)
        self.end("shutdown() was called")

    def end(self, reason: str) -> None:
        """Kills the workers, and gives their resources back."""
        for worker in self._workers:
            with contextlib.suppress(Exception):  # it may be dead already
                ray.kill(worker)
        if self._own_group is not None:
            remove_placement_group(self._own_group)
        if self._workers:
            self._ended = reason
        self._workers, self._own_group, self._unheard = [], None, []


class _WorkerDiedError(RankFailedError):
    """Not the function has failed, but the process."""


def _watch(boxed: list[list[Any]], names: Sequence[str]) -> Any:
    """Runs as a Ray task: waits for all results, and returns them packed as they are."""
    (refs,) = boxed  # in a box, since Ray would wait for references that are arguments
    failures, _ = _wait(refs, names)
    failure = first_failure(failures)
    if failure is not None:
        raise failure
    results = tuple(Unpacked(content) for content in ray.get(refs))
    return results if len(results) > 1 else results[0]


def _wait(refs: list[Any], names: Sequence[str]) -> tuple[list[RankFailedError], int]:
    """Returns the failures in their order, and how many ranks go on in spite of them."""
    ranks = {ref: rank for rank, ref in enumerate(refs)}
    failures: list[RankFailedError] = []
    until = None
    while ranks:
        patience = None if until is None else max(0.0, until - time.monotonic())
        ready, _ = ray.wait(list(ranks), num_returns=1, timeout=patience)
        if not ready:
            break
        rank = ranks.pop(ready[0])
        failure = _failure(ready[0], rank, names[rank])
        if failure is not None:
            failures.append(failure)
            until = until or time.monotonic() + DEFAULT_REPORT_SECONDS
    return failures, len(ranks)


def _failure(ref: Any, rank: int, name: str) -> RankFailedError | None:
    try:
        ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RankFailedError):
            return error.cause
        return RankFailedError(f"{name} has failed: {error}", rank)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1].partition(" Some common causes")[0]
        return _WorkerDiedError(
            f"{name} has failed: its process has died, or its node. Killed from "
            f"outside, out of memory, or crashed? Ray says: {reason}",
            rank,
        )
    return None
