"""Which rank this process is and where the ranks meet, whatever has launched them."""

from __future__ import annotations

import hashlib
import os
import socket

# Set by hvdrun on one host, by Open MPI, and by MPICH and its relatives.
IDENTITIES = (
    ("HVD_RANK", "HVD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
# Where the ranks of several hosts meet: ``tcp:HOST:PORT``, with rank 0's host.
ADDRESS = "HVD_SPMD_ADDRESS"
# Where the folders for ``shared_tmp_path`` are made, if not all ranks see the same /tmp.
FOLDER = "HVD_SPMD_FOLDER"


def identity() -> tuple[int, int] | None:
    """Rank and size; None in a process that is no rank."""
    for rank, size in IDENTITIES:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return None


def is_under_mpi() -> bool:
    """Whether an MPI launcher has started this process."""
    return identity() is not None and "HVD_RANK" not in os.environ


def address() -> str:
    """Where the ranks meet: ``tcp:HOST:PORT`` or ``unix:NAME``."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    # The segment's name is unique among the jobs of this machine, as is the MPI daemon that has
    # started all ranks of this host.
    unique = os.environ.get("HVD_SEGMENT", f"parent {os.getppid()}")
    return "unix:hvd-spmd-" + hashlib.sha256(unique.encode()).hexdigest()[:24]


def host() -> str:
    """What processes have in common that know each other by their process ids."""
    return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
