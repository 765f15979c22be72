"""``run``: a function as the tasks of a Spark job in barrier mode, each a rank.

Barrier mode starts all tasks at once, or none. Each task starts a process for its rank, which
lives no longer than the task: so a cancelled job leaves nothing behind, and TensorFlow's memory is
not the executor's. The ranks of one host share memory; over several hosts MPI joins them.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.mpi_job import DEFAULT_START_SECONDS
from hvd_keras.runner.driver import Driver
from hvd_keras.runner.mpi import Meeting
from hvd_keras.runner.payload import pack_call
from hvd_keras.runner.spark_task import Task

__all__ = ["run"]

_EXECUTORS_SECONDS = 60.0
_CANCEL_SECONDS = 10.0  # Spark gives a cancelled task two seconds before it kills it


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

    Where the tasks are on several hosts, these need MPI and mpi4py, and no ssh. The ranks of one
    host are neighbours.

    Args:
        fn: what to run; it is pickled with cloudpickle, and calls ``hvd.init()`` itself.
        args, kwargs: its arguments.
        num_proc: the number of ranks; None for as many as the cluster has slots.
        start_timeout: seconds to wait in ``hvd.init()`` for all ranks, and, over several hosts, for
            MPI to start them.
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
    conf = context.getConf()
    host = conf.get("spark.driver.host", "localhost")
    bind = conf.get("spark.driver.bindAddress", host)
    with _same_python(context), Driver([host], log, bind) as driver:
        meeting = Meeting(start_timeout or DEFAULT_START_SECONDS)
        task = Task(content, count, meeting, extra, driver.address)
        task.shows_output = show_output
        task.executable = executable
        try:
            ranks = context.parallelize(range(count), count).barrier().mapPartitions(task)
            results = dict(_collected(context, ranks))
        except Exception as error:
            failure = driver.first_failure()
            if failure is None:
                raise
            raise failure from error
    return [pickle.loads(results[rank]) for rank in range(count)]


def _collected(context: Any, ranks: Any) -> list[tuple[int, bytes]]:
    """What ``ranks.collect()`` returns; Ctrl-C cancels the job.

    It is called in a thread: in the one that Ctrl-C reaches, Spark could not be told to cancel
    anything, since the connection to it is busy with the call.
    """
    from pyspark import InheritableThread

    tag = f"hvd_keras-{secrets.token_hex(8)}"
    outcome: dict[str, Any] = {}

    def collect() -> None:
        try:
            if hasattr(context, "addJobTag"):  # Spark 3.5
                context.addJobTag(tag)
            outcome["results"] = ranks.collect()
        except BaseException as error:  # raised again below
            outcome["error"] = error

    thread = InheritableThread(target=collect, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        # Before Spark 3.5 this is left to Spark's own handler of Ctrl-C, which ends all jobs.
        if hasattr(context, "cancelJobsWithTag"):
            context.cancelJobsWithTag(tag)
        thread.join(_CANCEL_SECONDS)
        raise
    if "error" in outcome:
        raise outcome["error"]
    return outcome["results"]


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
