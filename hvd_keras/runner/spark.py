"""``run``: a function as the tasks of a Spark job in barrier mode, each a rank.

Barrier mode starts all tasks at once, or none. Each task starts a process for its rank, which
lives no longer than the task: so a cancelled job leaves nothing behind, and TensorFlow's memory is
not the executor's. The ranks of one host share memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_keras.launch import environment, processes
from hvd_keras.launch.report import describe
from hvd_keras.runner.driver_log import receiving
from hvd_keras.runner.errors import RankFailedError
from hvd_keras.runner.one_host import Host, require_one_host, this_host
from hvd_keras.runner.payload import pack_call
from hvd_keras.runner.spark_driver import Driver, DriverAddress
from hvd_keras.runner.worker import CALL, failure_file, result_file

__all__ = ["run"]

_EXECUTORS_SECONDS = 60.0


def run(
    fn: Callable,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    *,
    show_output: bool = True,
    log: Callable[[str], None] = print,
    executable: str | None = None,
) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` in the tasks of a Spark job; each task is a rank.

    Args:
        fn: what to run; it is pickled with cloudpickle, and calls ``hvd.init()`` itself.
        args, kwargs: its arguments.
        num_proc: the number of ranks; None for as many as the cluster has slots.
        start_timeout: seconds to wait in ``hvd.init()`` for all ranks.
        env: more environment variables for the ranks.
        show_output: whether what the ranks print is shown here, too.
        log: gets their output and what they send with ``log_to_driver``.
        executable: the Python to run on the workers; None for the workers' own.

    Returns:
        What ``fn`` has returned on each rank, in the order of the ranks.

    Raises:
        ImportError: pyspark is not installed.
        ValueError: there are fewer slots than ranks, or ``fn`` cannot be sent.
        RankFailedError: a rank has failed; with the first traceback.
    """
    context = _spark_context()
    slots = _slots(context, num_proc)
    count = slots if num_proc is None else num_proc
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"num_proc is {count!r}; expected a number of ranks of at least 1")
    if count > slots:
        raise ValueError(
            f"{count} ranks were asked for, but the Spark cluster runs at most {slots} tasks at "
            f"once; ask for {slots} or fewer, or give it more cores"
        )
    content = pack_call(fn, args, kwargs)
    extra = dict(env or {})
    if start_timeout is not None:
        extra["HVD_START_TIMEOUT"] = f"{start_timeout:g}"
    host = context.getConf().get("spark.driver.host", "localhost")
    with _same_python(context), Driver(host, log) as driver:
        task = _Task(content, count, secrets.token_hex(16), extra, driver.address)
        task.shows_output = show_output
        task.executable = executable
        try:
            ranks = context.parallelize(range(count), count).barrier().mapPartitions(task)
            results = dict(ranks.collect())
        except Exception as error:
            failure = driver.first_failure()
            if failure is None:
                raise
            raise failure from error
    return [pickle.loads(results[rank]) for rank in range(count)]


class _Task:
    """What each barrier task runs; pickled by Spark."""

    shows_output = True
    executable: str | None = None

    def __init__(
        self, content: bytes, size: int, token: str, env: dict[str, str], driver: DriverAddress
    ) -> None:
        self._content = content
        self._size = size
        self._token = token
        self._env = env
        self._driver = driver

    def __call__(self, _: Iterator[int]) -> Iterator[tuple[int, bytes]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        told = context.allGather(json.dumps(this_host()))
        hosts = [Host(*json.loads(text)) for text in told]
        require_one_host(hosts, "Spark tasks", "Ask for as many ranks as one worker has slots")
        with self._driver.connected(rank) as link, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / CALL).write_bytes(self._content)
            with receiving(folder, link.log) as log_address:
                returncode = self._run_rank(rank, folder, log_address, link.output)
            if returncode:
                path = failure_file(folder, rank)
                text = path.read_text() if path.exists() else ""
                error = _failure(rank, self._size, returncode, text)
                link.failed(str(error), returncode)
                raise error
            yield rank, result_file(folder, rank).read_bytes()

    def _run_rank(
        self, rank: int, folder: Path, log_address: str, show: Callable[[str], None]
    ) -> int:
        base = {**environment.current_environment(), **self._env}
        base["PYTHONPATH"] = os.pathsep.join(_paths_for_ranks())
        cores = len(os.sched_getaffinity(0))
        env = environment.rank_environment(base, rank, self._size, f"shm:{self._token}", cores)
        process = subprocess.Popen(
            [self.executable or sys.executable, "-m", "hvd_keras.runner", str(folder)],
            env={**env, "HVD_DRIVER_LOG": log_address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A Spark worker's other threads hold no lock that Python needs after fork.
            preexec_fn=_dies_with(os.getpid()),
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{rank}] {line}", end="", file=sys.stderr, flush=True)  # the task's own log
            if self.shows_output:
                show(f"[{rank}] {line.rstrip()}")
        return process.wait()


def _dies_with(parent: int) -> Callable[[], None]:
    return lambda: processes.prepare_rank(parent)


def _failure(rank: int, size: int, returncode: int, text: str) -> RankFailedError:
    how = f":\n\n{text}" if text else "; its output says why"
    return RankFailedError(
        f"rank {rank} of {size} has failed, with {describe(returncode)}{how}", rank, returncode
    )


def _paths_for_ranks() -> list[str]:
    """Where the ranks look for modules: what Spark has distributed, but not Spark itself."""
    given = [path for path in sys.path if path and os.path.exists(path)]
    return [path for path in given if "pyspark" not in path and "py4j" not in path]


def _spark_context() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            "a job on Spark needs pyspark: pip install 'hvd_keras[spark]' (HorovodRunner(np=-N) "
            "runs N processes on this machine without it)"
        ) from error
    return SparkSession.builder.getOrCreate().sparkContext


@contextlib.contextmanager
def _same_python(context: Any) -> Iterator[None]:
    """Workers on this machine run this Python, not the first one on PATH, unless told which."""
    chosen = environment.current_environment().get("PYSPARK_PYTHON")
    before = context.pythonExec
    if not chosen and context.master.startswith("local"):
        context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = before


def _slots(context: Any, wanted: int | None) -> int:
    """How many tasks run at once; executors that are just starting are waited for."""
    # No public function tells it; Spark asks itself the same before it starts a barrier stage.
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    slots, since = -1, time.monotonic()
    until = since + _EXECUTORS_SECONDS
    while True:
        now = time.monotonic()
        found = int(scala.maxNumConcurrentTasks(profile))
        if found != slots:
            slots, since = found, now
        is_enough = wanted is not None and slots >= wanted
        is_settled = slots > 0 and now - since >= (0 if context.master.startswith("local[") else 3)
        if is_enough or is_settled or now >= until:
            return slots
        time.sleep(0.2)
