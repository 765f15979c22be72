"""MPI_Allreduce by mpi4py alone: what the library is compared with. Prints one JSON object."""

import json
import socket
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
nbytes, rounds = int(sys.argv[1]), int(sys.argv[2])
mine = np.arange(nbytes // 4, dtype=np.float32) % 1000 + world.rank
result = np.full_like(mine, -1)
times = []
for _ in range(rounds):
    world.Barrier()
    start = time.perf_counter()
    world.Allreduce(mine, result)
    times.append(time.perf_counter() - start)
expected = (np.arange(nbytes // 4, dtype=np.float32) % 1000) * world.size + sum(range(world.size))
report = world.gather(
    {
        "host": socket.gethostname(),
        "right": bool(np.array_equal(result, expected)),
        "seconds": statistics.median(times),
    }
)
if world.rank == 0:
    print(json.dumps({"library": MPI.Get_library_version().split("\n")[0], "ranks": report}))
