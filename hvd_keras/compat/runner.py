"""``horovod.run``: runs a function on several ranks of this machine, and returns their results."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.hosts import check_hosts, parse_hosts
from hvd_keras.launch.local import launch

__all__ = ["run"]

# Arguments that have a meaning only where jobs are elastic or run on several machines.
_REFUSED = {
    "min_num_proc": "the number of ranks is fixed",
    "max_num_proc": "the number of ranks is fixed",
    "min_np": "the number of ranks is fixed",
    "max_np": "the number of ranks is fixed",
    "slots": "the number of ranks is fixed",
    "reset_limit": "the number of ranks is fixed",
    "cooldown_range": "the number of ranks is fixed",
    "host_discovery_script": "the number of ranks is fixed",
    "hostfile": "all ranks run on this machine",
    "use_mpi": "all ranks run on this machine, without MPI",
    "mpi_args": "all ranks run on this machine, without MPI",
}


def run(
    func: Callable,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: Any = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Any = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs ``func(*args, **kwargs)`` on ``num_proc`` ranks of this machine.

    Args:
        func: a function that can be pickled; with cloudpickle installed, any function.
        args, kwargs: its arguments.
        num_proc: the number of ranks (``np`` is an older name).
        hosts: only this machine, for example "localhost:4".
        start_timeout: seconds to wait in ``init`` for all ranks.
        output_filename: a folder for the ranks' output.
        verbose: say what is started.
        executable: the Python to run; None for this one.

    The other arguments are about ssh, networks and Gloo, and make no difference, or are refused,
    where they ask for ranks that come and go, for other machines or for MPI.

    Returns:
        What ``func`` has returned on each rank, in the order of the ranks.

    Raises:
        ValueError: an argument is refused, or ``func`` cannot be pickled.
        RuntimeError: a rank has failed; its output says why.
    """
    given = locals()
    for argument, reason in _REFUSED.items():
        if given[argument]:
            raise ValueError(
                f"horovod.run does not support {argument}={given[argument]!r}: {reason}"
            )
    count = np or num_proc or 1
    if hosts:
        check_hosts(parse_hosts(hosts), count)
    env = environment.with_alias(environment.current_environment())
    # What the function needs is imported from where it is here.
    paths = [path for path in sys.path if path]
    env["PYTHONPATH"] = os.pathsep.join([environment.ALIAS_FOLDER, *paths])
    if start_timeout is not None:
        env["HVD_START_TIMEOUT"] = f"{start_timeout:g}"
    with tempfile.TemporaryDirectory(prefix="hvd-run-") as folder:
        (Path(folder) / "call").write_bytes(_pickled((func, tuple(args), kwargs or {})))
        result = launch(
            [executable or sys.executable, "-m", "hvd_keras.compat.runner", folder],
            count,
            env=env,
            output_dir=output_filename,
            verbose=bool(verbose),
        )
        if result.exit_code:
            raise RuntimeError(
                f"horovod.run: the job of {count} ranks has failed with exit code "
                f"{result.exit_code}; its output says which rank failed, and why"
            )
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(count)]


def _pickled(value: Any) -> bytes:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(value)
    except Exception as error:
        hint = "" if pickler is not pickle else "; install cloudpickle to send any function"
        raise ValueError(
            f"horovod.run: what the ranks exchange with this process cannot be pickled "
            f"({type(error).__name__}: {error}){hint}"
        ) from error


def _run_in_rank(folder: str) -> None:
    from hvd_keras import compat
    from hvd_keras.settings import Settings

    compat.install()
    function, args, kwargs = pickle.loads((Path(folder) / "call").read_bytes())
    content = _pickled(function(*args, **kwargs))
    (Path(folder) / str(Settings.from_environment().rank)).write_bytes(content)


if __name__ == "__main__":
    _run_in_rank(sys.argv[1])
