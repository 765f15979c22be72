"""``horovod.run``: runs a function on several ranks, and returns their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.hosts import read_hostfile
from hvd_keras.runner import local

__all__ = ["run"]

# Arguments that have a meaning only where jobs are elastic.
_REFUSED = {
    "min_num_proc": "the number of ranks is fixed",
    "max_num_proc": "the number of ranks is fixed",
    "min_np": "the number of ranks is fixed",
    "max_np": "the number of ranks is fixed",
    "slots": "the number of ranks is fixed",
    "reset_limit": "the number of ranks is fixed",
    "cooldown_range": "the number of ranks is fixed",
    "host_discovery_script": "the number of ranks is fixed",
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
        hosts: where, for example "server1:2,server2:2"; None for this machine.
        hostfile: a file with lines "server1 slots=2", instead.
        ssh_port, ssh_identity_file: how ssh reaches other hosts.
        network_interfaces: the only ones that MPI may use (``network_interface`` is an older name).
        mpi_args: more arguments for mpirun or mpiexec, where ranks are on other hosts.
        start_timeout: seconds to wait in ``init`` for all ranks.
        output_filename: a folder for the ranks' output.
        verbose: say what is started.
        executable: the Python to run; None for this one.

    The other arguments make no difference: MPI is used over several hosts, and nothing else on
    one. Those that ask for ranks that come and go are refused.

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
    if hostfile:
        if hosts:
            raise ValueError("hosts and hostfile both name the hosts: leave out one of them")
        named = [(f"[{h}]" if ":" in h else h, n) for h, n in read_hostfile(hostfile)]
        hosts = ",".join(f"{host}:{slots}" for host, slots in named)
    return local.run(
        func,
        args,
        kwargs,
        np or num_proc or 1,
        hosts,
        env=env,
        start_timeout=start_timeout,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        network_interfaces=network_interfaces or network_interface or (),
        mpi_args=mpi_args or "",
        executable=executable,
        output_dir=output_filename,
        verbose=bool(verbose),
    )
