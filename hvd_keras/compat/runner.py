"""``horovod.run``: runs a function on several ranks of this machine, and returns their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.runner import local

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
    """``hvd_keras.runner.run``, for ``func`` that imports ``horovod``.

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
        RuntimeError: a rank has failed; with its traceback.
    """
    given = locals()
    for argument, reason in _REFUSED.items():
        if given[argument]:
            raise ValueError(
                f"horovod.run does not support {argument}={given[argument]!r}: {reason}"
            )
    env = environment.with_alias(environment.current_environment())
    if start_timeout is not None:
        env["HVD_START_TIMEOUT"] = f"{start_timeout:g}"
    return local.run(
        func,
        args,
        kwargs,
        np or num_proc or 1,
        hosts,
        env=env,
        executable=executable,
        output_dir=output_filename,
        verbose=bool(verbose),
    )
