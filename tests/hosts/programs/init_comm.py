"""Jobs of some of the processes that MPI has started: ``hvd.init(comm=...)``. Run by four."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from mpi4py import MPI

import hvd_keras as hvd

WORLD = MPI.COMM_WORLD


def job(comm: Any) -> list[int]:
    """Rank, size, numbers of hosts and of ranks here, and the sum of the processes' numbers."""
    hvd.init(comm=comm)
    total = hvd.allreduce(np.array([float(WORLD.rank)]), op=hvd.Sum, name="number")
    place = [hvd.rank(), hvd.size(), hvd.cross_size(), hvd.local_size(), int(total.numpy()[0])]
    hvd.shutdown()
    return place


def error(comm: Any) -> str:
    try:
        hvd.init(comm=comm)
    except ValueError as wrong:
        return str(wrong)
    return ""


def main() -> None:
    me = WORLD.rank
    found = {
        "number": me,
        # Across the hosts, in the reverse order.
        "split": job(WORLD.Split(me % 2, -me)),
        "self": job(MPI.COMM_SELF),
        "list": job([1, 0] if me < 2 else [2, 3]),
        "empty list": job([]),
        "three": job([0, 2, 3]) if me != 1 else [],
        "not among them": error([(me + 1) % 4]),
        "no communicator": error("all"),
        "null": error(MPI.COMM_NULL),
    }
    print("FOUND " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
