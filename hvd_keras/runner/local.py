"""``run``: a function on several ranks of this machine."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.hosts import check_hosts, parse_hosts
from hvd_keras.launch.job import JobResult
from hvd_keras.launch.local import launch
from hvd_keras.runner.driver_log import receiving
from hvd_keras.runner.errors import RankFailedError
from hvd_keras.runner.payload import pack_call
from hvd_keras.runner.worker import CALL, failure_file, result_file

__all__ = ["run"]


def run(
    function: Callable,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    hosts: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    stdout: Any = None,
    stderr: Any = None,
    output_dir: str | None = None,
    verbose: bool = False,
    log: Callable[[str], None] = print,
) -> list[Any]:
    """Runs ``function(*args, **kwargs)`` on ``np`` new processes of this machine.

    Each calls ``hvd.init()`` itself, and what it returns comes back::

        def train(epochs):
            import hvd_keras as hvd

            hvd.init()
            ...
            return history.history

        histories = hvd_keras.runner.run(train, kwargs={"epochs": 3}, np=2)

    Args:
        function: what to run. With cloudpickle installed, any function; else one of a module.
        args, kwargs: its arguments; they are pickled.
        np: the number of ranks.
        hosts: only this machine, for example "localhost:4".
        env: the environment of the ranks; None for this process's.
        executable: the Python to run; None for this one.
        stdout, stderr: where the ranks' output goes, as for ``subprocess.Popen``; None to inherit.
        output_dir: a folder for the ranks' output, too.
        verbose: say what is started.
        log: gets what the ranks send with ``log_to_driver``.

    Returns:
        What the function has returned on each rank, in the order of the ranks.

    Raises:
        ValueError: the function or its arguments cannot be sent, and why.
        RankFailedError: a rank has failed; with the traceback of the first one.
        hvd_keras.launch.errors.LaunchError: the ranks could not be started.
    """
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise ValueError(f"np is {np!r}; expected a number of ranks of at least 1")
    if hosts:
        check_hosts(parse_hosts(hosts), np)
    content = pack_call(function, args, kwargs)
    with tempfile.TemporaryDirectory(prefix="hvd-run-") as name:
        folder = Path(name)
        (folder / CALL).write_bytes(content)
        with receiving(folder, log) as address:
            result = launch(
                [executable or sys.executable, "-m", "hvd_keras.runner", name],
                np,
                env={**_ranks_environment(env), "HVD_DRIVER_LOG": address},
                stdout=stdout,
                stderr=stderr,
                output_dir=output_dir,
                verbose=verbose,
            )
        if result.exit_code:
            raise _failure(folder, result, np)
        return [pickle.loads(result_file(folder, rank).read_bytes()) for rank in range(np)]


def quiet() -> dict[str, Any]:
    """The arguments that keep the ranks' output to themselves."""
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _ranks_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """What the function needs is imported from where it is here."""
    chosen = environment.current_environment() if env is None else dict(env)
    paths = [chosen.get("PYTHONPATH", ""), *sys.path]
    chosen["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return chosen


def _failure(folder: Path, result: JobResult, np: int) -> RankFailedError:
    rank = result.first_failure
    if rank is None:
        return RankFailedError(
            f"the job of {np} ranks was ended ({result.cause}, exit code {result.exit_code})",
            exit_code=result.exit_code,
        )
    ended = result.ranks[rank]
    how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
    path = failure_file(folder, rank)
    text = f":\n\n{path.read_text()}" if path.exists() else "; its output says why"
    message = f"rank {rank} of {np} (pid {ended.pid}) has failed first, with {how}{text}"
    return RankFailedError(message, rank, ended.exit_code)
