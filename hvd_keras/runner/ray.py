"""``RayExecutor``: functions on the actors of a Ray cluster, each a rank.

The actors live from ``start`` to ``shutdown``, and so do the ranks: what one function leaves in
its process, the next one finds there. The ranks of one host share memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hvd_keras.launch.job import DEFAULT_REPORT_SECONDS
from hvd_keras.runner.errors import RankFailedError, first_failure
from hvd_keras.runner.one_host import require_one_host
from hvd_keras.runner.payload import pack_call

try:
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError(
        f"hvd_keras.ray needs Ray ({error}): pip install 'hvd_keras[ray]'", name="ray"
    ) from error

from hvd_keras.runner import ray_placement
from hvd_keras.runner.ray_placement import Plan
from hvd_keras.runner.ray_worker import Place, Worker

__all__ = ["RayExecutor", "RaySettings"]

_LEAVE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """What ``RayExecutor.create_settings`` returns.

    Attributes:
        timeout_s: seconds to wait in ``hvd.init()`` for all ranks.
        placement_group_timeout_s: seconds to wait for the workers' resources, and their start.
        ssh_identity_file, ssh_str, nics: make no difference: no ssh or network is used.
    """

    timeout_s: float = 30
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    placement_group_timeout_s: float = 100
    nics: Any = None


class RayExecutor:
    """Starts workers on a Ray cluster and runs functions on all of them at once.

    ::

        executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
        executor.start()
        histories = executor.run(train, kwargs={"epochs": 3})    # in the order of the ranks
        executor.shutdown()

    Ranks of one node are neighbours, and ``local_rank`` counts the ranks that share memory. All
    workers have to be on one host, until jobs over several hosts are supported.

    Args:
        settings: of ``create_settings``, or any object with some of its attributes; None for the
            defaults.
        num_workers: the number of ranks, packed onto as few nodes as possible.
        num_hosts: instead of it, the number of nodes, each with ``num_workers_per_host`` ranks.
        num_workers_per_host: the number of ranks on each of these nodes.
        cpus_per_worker: Ray's CPUs of each worker; it is also the number of threads that
            TensorFlow computes with, where TF_NUM_INTRAOP_THREADS does not say otherwise.
        use_gpu: whether each worker needs GPUs.
        gpus_per_worker: how many, 1 or more; None for one, where ``use_gpu`` is set. The workers
            of a host see all of their GPUs, in the order of the ranks, so that
            ``gpus[hvd.local_rank()]`` is a GPU of their own.
        use_current_placement_group: where this runs in a placement group, put the workers there.
        min_workers, max_workers, reset_limit, cooldown_range: refused: ranks do not come and go.
        elastic_timeout, override_discovery: make no difference.

    Raises:
        ValueError: an argument is wrong or refused.
    """

    # For the workers, beside what the user asks for; the alias ``horovod.ray`` has more.
    _worker_env: Mapping[str, str] = {}

    def __init__(
        self,
        settings: Any = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Any = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        elastic = {
            "min_workers": min_workers,
            "max_workers": max_workers,
            "reset_limit": reset_limit,
            "cooldown_range": cooldown_range,
        }
        for name, value in elastic.items():
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r}, but the number of workers is fixed: leave it out, and "
                    "pass num_workers or num_hosts"
                )
        gpus = _gpus(use_gpu, gpus_per_worker)
        self._plan = _plan(num_workers, num_hosts, num_workers_per_host, cpus_per_worker, gpus)
        self._uses_current_group = use_current_placement_group
        self._init_seconds = _seconds(settings, "timeout_s", RaySettings.timeout_s)
        self._start_seconds = _seconds(
            settings, "placement_group_timeout_s", RaySettings.placement_group_timeout_s
        )
        self._own_group: PlacementGroup | None = None
        self._workers: list[Any] = []  # by rank
        self._places: list[Place] = []  # likewise
        self._env: dict[str, str] = {}
        self._ended = ""  # why there are no workers

    @staticmethod
    def create_settings(
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Any = None,
    ) -> RaySettings:
        """Returns settings for the constructor; see ``RaySettings``."""
        return RaySettings(timeout_s, ssh_identity_file, ssh_str, placement_group_timeout_s, nics)

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return self._plan.workers

    def start(
        self,
        executable_cls: Callable | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers.

        Args:
            executable_cls: a class; each worker makes an object of it, which ``execute`` hands to
                its functions.
            executable_args, executable_kwargs: the arguments of the class.
            extra_env_vars: environment variables of the workers.

        Raises:
            ValueError: the cluster is too small, or the class cannot be sent.
            TimeoutError: its resources did not become free in time.
            RuntimeError: the workers were started already, or are on several hosts.
            RankFailedError: a worker could not be started, or making its object has failed.
        """
        if self._workers:
            raise RuntimeError("the workers were started already; call shutdown() first")
        call = None
        if executable_cls is not None:
            call = pack_call(executable_cls, executable_args or (), executable_kwargs)
        if not ray.is_initialized():
            ray.init()
        self._ended = ""
        try:
            self._start_workers()
            self._env = {"HVD_START_TIMEOUT": f"{self._init_seconds:g}", **self._worker_env}
            self._env.update({name: str(value) for name, value in (extra_env_vars or {}).items()})
            self._form_group()
            if call is not None:
                self._collect(self._on_all("make_executable", call))
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable] | None = None,
    ) -> list[Any]:
        """Runs ``fn(*args, **kwargs)`` on all workers.

        Each calls ``hvd.init()`` itself, if an earlier function has not. After a failure the
        workers have left their group, and the next function calls it again.

        Args:
            fn: what to run; it is pickled with cloudpickle.
            args, kwargs: its arguments.
            callbacks: refused; they belong to elastic jobs.

        Returns:
            What it has returned on each rank, in the order of the ranks.

        Raises:
            ValueError: it cannot be sent, and why.
            RankFailedError: a rank has failed; with the traceback of the first one. Where a
                worker has died, or does not end within seconds of another one's failure, all are
                ended, and ``start`` starts new ones.
            RuntimeError: ``start`` was not called, or the workers have ended.
        """
        _refuse_callbacks(callbacks)
        return self._collect(self.run_remote(fn, args, kwargs))

    def run_remote(
        self,
        fn: Callable,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Like ``run``, but returns Ray's references to the results at once.

        ``ray.get`` of a reference raises RankFailedError where that rank has failed. Nothing is
        done about the other workers then: call ``shutdown``, and ``start`` for new ones.
        """
        self._require_workers()
        return self._on_all("run", pack_call(fn, args or (), kwargs))

    def execute(self, fn: Callable, callbacks: Sequence[Callable] | None = None) -> list[Any]:
        """Runs ``fn(executable)`` on all workers; the rest is as for ``run``.

        Args:
            fn: what to run, with the worker's object of ``executable_cls``, or None without one.
            callbacks: refused.
        """
        _refuse_callbacks(callbacks)
        self._require_workers()
        return self._collect(self._on_all("execute", pack_call(fn)))

    def execute_single(self, fn: Callable) -> Any:
        """Runs ``fn(executable)`` on rank 0 only, and returns its result."""
        self._require_workers()
        return self._collect([self._workers[0].execute.remote(pack_call(fn))])[0]

    def shutdown(self) -> None:
        """Ends the workers and gives their resources back. It may be called more than once."""
        if ray.is_initialized():
            if self._workers:
                left = [worker.leave.remote() for worker in self._workers]
                ray.wait(left, num_returns=len(left), timeout=_LEAVE_SECONDS)
            self._end("shutdown() was called")
        self._workers, self._own_group = [], None

    # Starting

    def _start_workers(self) -> None:
        """Starts the actors and puts them into the order of the ranks."""
        plan = self._plan
        group = ray_placement.current_group(plan) if self._uses_current_group else None
        is_own = group is None
        if group is None:
            ray_placement.require_room(plan)
            group = self._own_group = ray_placement.make_group(plan, self._start_seconds)
        actor = ray.remote(Worker)
        for index in range(plan.workers):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=group,
                placement_group_bundle_index=index // plan.workers_per_bundle if is_own else -1,
            )
            needs = {"num_cpus": plan.worker["CPU"], "num_gpus": plan.worker.get("GPU", 0)}
            self._workers.append(actor.options(scheduling_strategy=strategy, **needs).remote())
        places = self._places_of_workers()
        most = "Ask for as many workers as one node has room for"
        require_one_host([place.host for place in places], "Ray workers", most)
        order = _rank_order(places)
        self._workers = [self._workers[index] for index in order]
        self._places = [places[index] for index in order]

    def _places_of_workers(self) -> list[Place]:
        asked = [worker.place.remote() for worker in self._workers]
        ready, late = ray.wait(asked, num_returns=len(asked), timeout=self._start_seconds)
        try:
            places = dict(zip(ready, ray.get(ready), strict=True))
        except ray.exceptions.RayError as error:
            raise RankFailedError(f"a Ray worker could not be started: {error}") from error
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(asked)} Ray workers did not start within "
                f"{self._start_seconds:g} s (placement_group_timeout_s), though their placement "
                "group is there; Ray's logs may say why, or tasks of this group use its resources"
            )
        return [places[ref] for ref in asked]

    def _form_group(self) -> None:
        """Tells the workers who they are; also after a failure, when they meet anew."""
        size = len(self._workers)
        segment = f"shm:{secrets.token_hex(16)}"
        env = dict(self._env)
        # Ray shows each worker its own GPUs only, where scripts expect to choose by local rank.
        gpus = dict.fromkeys(gpu for place in self._places for gpu in place.gpus)
        if gpus:
            env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus))
        cores = max(1, int(self._plan.worker["CPU"])) * size
        told = [
            worker.become_rank.remote(rank, size, segment, env, cores)
            for rank, worker in enumerate(self._workers)
        ]
        ray.get(told)

    # Running

    def _require_workers(self) -> None:
        if not self._workers:
            raise RuntimeError(
                f"there are no workers, since {self._ended}: call start()"
                if self._ended
                else "there are no workers yet: call start() first"
            )

    def _on_all(self, method: str, call: bytes) -> list[Any]:
        stored = ray.put(call)
        return [getattr(worker, method).remote(stored) for worker in self._workers]

    def _collect(self, refs: list[Any]) -> list[Any]:
        """Returns the results; after a failure the workers are made ready for more, or ended."""
        try:
            failures, late = self._wait(refs)
            failure = first_failure(failures)
            if failure is None:
                return ray.get(refs)
            if late or any(isinstance(failure, _WorkerDiedError) for failure in failures):
                self._end(f"rank {failure.rank} has failed and not all others ended by themselves")
            else:
                self._form_group()
        except (ray.exceptions.RayError, KeyboardInterrupt, SystemExit) as error:
            # Ctrl-C: the ranks are not left running what nobody waits for.
            self._end(f"the job was interrupted ({type(error).__name__})")
            raise
        raise failure

    def _wait(self, refs: list[Any]) -> tuple[list[RankFailedError], int]:
        """Returns the failures in their order, and how many ranks go on in spite of them."""
        ranks = {ref: rank for rank, ref in enumerate(refs)}
        failures: list[RankFailedError] = []
        until = None
        while ranks:
            patience = None if until is None else max(0.0, until - time.monotonic())
            ready, _ = ray.wait(list(ranks), num_returns=1, timeout=patience)
            if not ready:
                break
            failure = self._failure(ready[0], ranks.pop(ready[0]))
            if failure is not None:
                failures.append(failure)
                until = until or time.monotonic() + DEFAULT_REPORT_SECONDS
        return failures, len(ranks)

    def _failure(self, ref: Any, rank: int) -> RankFailedError | None:
        try:
            ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RankFailedError):
                return error.cause
            return RankFailedError(f"{self._name(rank)} has failed: {error}", rank)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1].partition(" Some common causes")[0]
            return _WorkerDiedError(
                f"{self._name(rank)} has failed: its process has died, or its node. Killed from "
                f"outside, out of memory, or crashed? Ray says: {reason}",
                rank,
            )
        return None

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {len(self._workers)} (pid {self._places[rank].pid})"

    def _end(self, reason: str) -> None:
        """Kills the workers, and gives their resources back."""
        for worker in self._workers:
            with contextlib.suppress(Exception):  # it may be dead already
                ray.kill(worker)
        if self._own_group is not None:
            remove_placement_group(self._own_group)
        if self._workers:
            self._ended = reason
        self._workers, self._own_group = [], None


class _WorkerDiedError(RankFailedError):
    """Not the function has failed, but the process."""


def _rank_order(places: Sequence[Place]) -> list[int]:
    """Which worker is rank 0, 1...: those of a host are neighbours, and those of a node there."""
    hosts = _first_seen(place.host.identity for place in places)
    nodes = _first_seen(place.node for place in places)
    return sorted(
        range(len(places)),
        key=lambda index: (hosts[places[index].host.identity], nodes[places[index].node], index),
    )


def _first_seen(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _plan(
    num_workers: int | None, num_hosts: int | None, per_host: int, cpus: float, gpus: int
) -> Plan:
    if (num_workers is None) == (num_hosts is None):
        raise ValueError(
            f"num_workers is {num_workers!r} and num_hosts is {num_hosts!r}; expected one of them"
        )
    counts = {"num_workers": num_workers, "num_hosts": num_hosts, "num_workers_per_host": per_host}
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise TypeError(f"{name} is {count!r}; expected a whole number")
        if count is not None and count < 1:
            raise ValueError(f"{name} is {count}; expected a number of at least 1")
    if not cpus > 0:
        raise ValueError(f"cpus_per_worker is {cpus!r}; expected a number of CPUs above 0")
    worker = {"CPU": cpus, "GPU": float(gpus)} if gpus else {"CPU": cpus}
    if num_workers is not None:
        return Plan(worker, num_workers)
    assert num_hosts is not None
    return Plan(worker, num_hosts, per_host, spread=True)


def _gpus(use_gpu: bool, gpus_per_worker: int | None) -> int:
    if gpus_per_worker is None:
        return int(use_gpu)
    if not use_gpu:
        raise ValueError(f"gpus_per_worker is {gpus_per_worker!r}, but use_gpu is not set")
    if gpus_per_worker < 1 or gpus_per_worker != int(gpus_per_worker):
        raise ValueError(
            f"gpus_per_worker is {gpus_per_worker!r}; expected a whole number of at least 1, "
            "since each worker needs a GPU of its own"
        )
    return int(gpus_per_worker)


def _seconds(settings: Any, name: str, default: float) -> float:
    """A setting of any settings object; those for other launchers may lack it."""
    value = getattr(settings, name, None)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"the setting {name} is {value!r}; expected a number of seconds above 0")
    return value


def _refuse_callbacks(callbacks: Sequence[Callable] | None) -> None:
    if callbacks:
        raise ValueError(
            "callbacks belong to elastic jobs, and the number of workers is fixed: leave them out, "
            "and let the function call hvd_keras.runner.log_to_driver"
        )
