"""Joining the ranks, one's place among them, and what this build can do."""

from __future__ import annotations

from typing import Any

from hvd_keras import world
from hvd_keras.compat.errors import translated
from hvd_keras.diagnostics import timeline

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Meets the other ranks; see ``hvd_keras.init``.

    ``process_sets="dynamic"`` may be left out: they always are.
    """
    with translated():
        world.init(comm, None if process_sets == "dynamic" else process_sets)


def shutdown() -> None:
    """Leaves the group."""
    world.shutdown()


def is_initialized() -> bool:
    """Returns whether ``init`` was called, and ``shutdown`` was not."""
    return world.is_initialized()


def rank() -> int:
    """Returns this process's rank."""
    with translated():
        return world.rank()


def size() -> int:
    """Returns the number of ranks."""
    with translated():
        return world.size()


def local_rank() -> int:
    """Returns this process's rank among those of its host."""
    with translated():
        return world.local_rank()


def local_size() -> int:
    """Returns the number of ranks on this host."""
    with translated():
        return world.local_size()


def cross_rank() -> int:
    """Returns the number of this host."""
    with translated():
        return world.cross_rank()


def cross_size() -> int:
    """Returns the number of hosts."""
    with translated():
        return world.cross_size()


def is_homogeneous() -> bool:
    """Returns whether all hosts have equally many ranks."""
    return local_size() * cross_size() == size()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write a timeline: each rank a file of its own, rank 0 the one that is named."""
    with translated():
        timeline.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends this rank's timeline, if there is one."""
    with translated():
        timeline.stop_timeline()


def mpi_threads_supported() -> bool:
    """Returns whether MPI is used, which then is with several threads."""
    rank()
    return mpi_enabled()


def mpi_enabled() -> bool:
    """Returns whether the ranks were started through MPI."""
    return is_initialized() and world.require_initialized("hvd.mpi_enabled()").mpi_size > 0


def mpi_built() -> bool:
    """Returns True: MPI is looked for at run time, between hosts."""
    return True


def gloo_enabled() -> bool:
    """Returns False: Gloo is not used."""
    return False


def gloo_built() -> bool:
    """Returns False: ranks exchange data through shared memory."""
    return False


def nccl_built() -> int:
    """Returns 0: the collectives work in host memory."""
    return 0


def ddl_built() -> bool:
    """Returns False: IBM's DDL is not carried over."""
    return False


def ccl_built() -> bool:
    """Returns False: oneCCL is not carried over."""
    return False


def cuda_built() -> bool:
    """Returns False: the collectives work in host memory."""
    return False


def rocm_built() -> bool:
    """Returns False: ROCm is not carried over."""
    return False
