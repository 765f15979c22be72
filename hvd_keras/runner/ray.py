"""``RayExecutor``: functions on the actors of a Ray cluster, each a rank.

The actors live from ``start`` to ``shutdown``, and so do the ranks: what one function leaves in
its process, the next one finds there. The ranks of one host share memory; over several hosts MPI
joins them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras.runner.payload import pack_call

try:
    import ray
except ImportError as error:
    raise ImportError(
        f"hvd_keras.ray needs Ray ({error}): pip install 'hvd_keras[ray]'", name="ray"
    ) from error

from hvd_keras.runner.ray_group import WorkerGroup
from hvd_keras.runner.ray_placement import Plan

__all__ = ["RayExecutor", "RaySettings"]


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """What ``RayExecutor.create_settings`` returns.

    Attributes:
        timeout_s: seconds to wait in ``hvd.init()`` for all ranks.
        placement_group_timeout_s: seconds to wait for the workers' resources, and their start.
        ssh_identity_file, ssh_str, nics: make no difference: no ssh is used.
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

    Ranks of one node are neighbours, and ``local_rank`` counts the ranks that share memory. Where
    the workers are on several hosts, these need MPI and mpi4py, and no ssh.

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
        plan = _plan(num_workers, num_hosts, num_workers_per_host, cpus_per_worker, gpus)
        self._init_seconds = _seconds(settings, "timeout_s", RaySettings.timeout_s)
        start_seconds = _seconds(
            settings, "placement_group_timeout_s", RaySettings.placement_group_timeout_s
        )
        self._num_workers = plan.workers
        self._group = WorkerGroup(plan, use_current_placement_group, start_seconds)

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
        return self._num_workers

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
            RuntimeError: the workers were started already.
            RankFailedError: a worker could not be started, MPI could not join the hosts, or making
                its object has failed.
        """
        if self._group:
            raise RuntimeError("the workers were started already; call shutdown() first")
        call = None
        if executable_cls is not None:
            call = pack_call(executable_cls, executable_args or (), executable_kwargs)
        if not ray.is_initialized():
            ray.init()
        env = {"HVD_START_TIMEOUT": f"{self._init_seconds:g}", **self._worker_env}
        env.update({name: str(value) for name, value in (extra_env_vars or {}).items()})
        try:
            self._group.start(env)
            if call is not None:
                self._group.collect(self._group.on_all("make_executable", call))
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
        self._require_workers()
        return self._group.collect(self._group.on_all("run", pack_call(fn, args or (), kwargs)))

    def run_remote(
        self,
        fn: Callable,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Like ``run``, but returns Ray's references to the results at once.

        They are there when all ranks have ended. Where one has failed, ``ray.get`` of each of them
        raises its RankFailedError. The next function waits for these, unless it is one for
        ``run_remote``, too.
        """
        self._group.require()
        packed = pack_call(fn, args or (), kwargs)
        return self._group.watched(self._group.on_all("run_packed", packed))

    def execute(self, fn: Callable, callbacks: Sequence[Callable] | None = None) -> list[Any]:
        """Runs ``fn(executable)`` on all workers; the rest is as for ``run``.

        Args:
            fn: what to run, with the worker's object of ``executable_cls``, or None without one.
            callbacks: refused.
        """
        _refuse_callbacks(callbacks)
        self._require_workers()
        return self._group.collect(self._group.on_all("execute", pack_call(fn)))

    def execute_single(self, fn: Callable) -> Any:
        """Runs ``fn(executable)`` on rank 0 only, and returns its result."""
        self._require_workers()
        return self._group.collect(self._group.on_first("execute", pack_call(fn)))[0]

    def shutdown(self) -> None:
        """Ends the workers and gives their resources back. It may be called more than once."""
        if ray.is_initialized():
            self._group.shutdown()

    def _require_workers(self) -> None:
        self._group.settle()
        self._group.require()


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
