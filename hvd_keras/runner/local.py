"""``run``: a function on several ranks of this machine, or of those that ssh reaches."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvd_keras.launch import environment
from hvd_keras.launch.hosts import HostSlots, check_slots, is_this_machine, parse_hosts
from hvd_keras.launch.job import JobResult
from hvd_keras.launch.local import launch
from hvd_keras.launch.mpi_job import (
    DEFAULT_START_SECONDS,
    MpiOptions,
    SshOptions,
    parse_words,
    start_mpi_job,
)
from hvd_keras.runner.driver import Driver, addresses_towards
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
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    network_interfaces: str | Sequence[str] = (),
    mpi_args: str = "",
) -> list[Any]:
    """Runs ``function(*args, **kwargs)`` on ``np`` new processes.

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
        hosts: where, for example "server1:2,server2:2"; None for this machine. Others are reached
            by ssh, and joined by MPI, as hvdrun does it.
        env: the environment of the ranks; None for this process's.
        executable: the Python to run; None for this one.
        stdout, stderr: where the ranks' output goes, as for ``subprocess.Popen``; None to inherit.
        output_dir: a folder for the ranks' output, too.
        verbose: say what is started.
        log: gets what the ranks send with ``log_to_driver``.
        start_timeout: seconds to wait in ``hvd.init()`` for all ranks, and for their start on other
            hosts.
        ssh_port, ssh_identity_file: how ssh reaches other hosts.
        network_interfaces: the only ones that MPI may use, separated by commas or as a list.
        mpi_args: more arguments for mpirun or mpiexec.

    Returns:
        What the function has returned on each rank, in the order of the ranks.

    Raises:
        ValueError: the function or its arguments cannot be sent, and why.
        RankFailedError: a rank has failed; with the traceback of the first one.
        hvd_keras.launch.errors.LaunchError: the ranks could not be started.
    """
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise ValueError(f"np is {np!r}; expected a number of ranks of at least 1")
    chosen = _ranks_environment(env)
    if start_timeout is not None:
        chosen["HVD_START_TIMEOUT"] = f"{start_timeout:g}"
    slots = parse_hosts(hosts) if hosts else [HostSlots("localhost", np)]
    check_slots(slots, np)
    work = _Work(
        [executable or sys.executable, "-m", "hvd_keras.runner"],
        np,
        pack_call(function, args, kwargs),
        chosen,
        {"stdout": stdout, "stderr": stderr, "output_dir": output_dir, "verbose": verbose},
        log,
    )
    if all(is_this_machine(host) for host, _ in slots):
        packed = _run_here(work)
    else:
        options = MpiOptions(
            interfaces=_names(network_interfaces),
            ssh=SshOptions(ssh_port, ssh_identity_file),
            mpi_args=parse_words(mpi_args, "mpi_args"),
            start_seconds=start_timeout or DEFAULT_START_SECONDS,
            checks_ssh="SLURM_JOB_ID" not in chosen,  # there, MPI's launchers use srun
        )
        packed = _run_there(work, slots, options)
    return [pickle.loads(result) for result in packed]


class _Work(NamedTuple):
    """What is to be run, wherever that is."""

    command: list[str]
    np: int
    content: bytes
    env: dict[str, str]
    output: dict[str, Any]
    log: Callable[[str], None]


def _run_here(work: _Work) -> list[bytes]:
    """Runs the packed call on this machine, and returns the packed results."""
    with tempfile.TemporaryDirectory(prefix="hvd-run-") as name:
        folder = Path(name)
        (folder / CALL).write_bytes(work.content)
        with receiving(folder, work.log) as address:
            env = {**work.env, environment.DRIVER_LOG_VARIABLE: address}
            result = launch([*work.command, name], work.np, env=env, **work.output)
        if result.exit_code:
            raise _failure(result, work.np, lambda rank: _text_of(failure_file(folder, rank)))
        return [result_file(folder, rank).read_bytes() for rank in range(work.np)]


def _run_there(work: _Work, hosts: list[HostSlots], options: MpiOptions) -> list[bytes]:
    """Likewise, on several machines, which come to this one for the call and with the results."""
    names = [host for host, _ in hosts]
    with Driver(addresses_towards(names), work.log, call=work.content) as driver:
        env = {**work.env, environment.DRIVER_VARIABLE: driver.address.to_text()}
        job = start_mpi_job(work.command, work.np, hosts, options, env, **work.output)
        result = job.wait()
        if result.exit_code:
            raise _failure(result, work.np, driver.failure_of)
        driver.hear_the_last()
        missing = [rank for rank in range(work.np) if rank not in driver.results]
        if missing:
            raise RankFailedError(f"rank {missing[0]} of {work.np} has ended without a result")
        return [driver.results[rank] for rank in range(work.np)]


def quiet() -> dict[str, Any]:
    """The arguments that keep the ranks' output to themselves."""
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _ranks_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """What the function needs is imported from where it is here."""
    chosen = environment.current_environment() if env is None else dict(env)
    paths = [chosen.get("PYTHONPATH", ""), *sys.path]
    chosen["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return chosen


def _failure(result: JobResult, np: int, told: Callable[[int], str]) -> RankFailedError:
    """What is to be raised; ``told`` says what a rank has told of its failure."""
    rank = result.first_failure
    if rank is None:
        return RankFailedError(
            f"the job of {np} ranks was ended ({result.cause}, exit code {result.exit_code})",
            exit_code=result.exit_code,
        )
    ended = next(entry for entry in result.ranks if entry.rank == rank)
    how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
    text = told(rank)
    text = f":\n\n{text}" if text else "; its output says why"
    message = f"rank {rank} of {np} (pid {ended.pid}) has failed first, with {how}{text}"
    return RankFailedError(message, rank, ended.exit_code)


def _names(listed: str | Sequence[str]) -> list[str]:
    words = listed.split(",") if isinstance(listed, str) else listed
    return [word.strip() for word in words if word.strip()]


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""
