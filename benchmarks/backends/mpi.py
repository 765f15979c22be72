"""MPI_Allreduce on host memory, through mpi4py."""

from __future__ import annotations

from collections.abc import Sequence

import mpi4py
import numpy as np
from mpi4py import MPI

from benchmarks.backends import Backend, Function, Shape

WORLD = MPI.COMM_WORLD


class Mpi(Backend):
    def __init__(self) -> None:
        self.rank, self.size = WORLD.rank, WORLD.size

    def versions(self) -> dict[str, str]:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ,")
        return super().versions() | {"mpi4py": mpi4py.__version__, "mpi": library}

    def barrier(self) -> None:
        WORLD.Barrier()

    def allreduce(self, nbytes: int, dtype: str, repeat: int) -> dict[str, Function]:
        source = np.ones(max(1, nbytes // 4), np.float32)
        target = np.zeros_like(source)

        def run() -> None:
            for _ in range(repeat):
                WORLD.Allreduce(source, target)

        return {"host": run}

    def gradient_set(self, shapes: Sequence[Shape]) -> dict[str, Function]:
        sources = [np.ones(shape, np.float32) for shape in shapes]
        targets = [np.zeros_like(source) for source in sources]

        def run() -> None:
            for source, target in zip(sources, targets, strict=True):
                WORLD.Allreduce(source, target)

        return {"one by one": run}


def connect() -> Mpi:
    return Mpi()
