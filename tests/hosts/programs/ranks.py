"""Ranks that meet through mpi4py alone, for tests of the launcher: ``ranks.py WHAT FOLDER``.

Each prints one JSON object that tells where it is. WHAT is "end", "die", where rank 3 kills itself
when all have met, or "wait", where all wait until they are ended. ``met.<r>`` says that a rank has
met the others.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
report = {
    "rank": world.rank,
    "size": world.size,
    "sum": world.allreduce(world.rank + 1),
    "host": socket.gethostname(),
    "folder": os.getcwd(),
    "text": os.environ.get("HVD_TEST_TEXT"),
    "library": MPI.Get_library_version().split("\n")[0],
}
print(json.dumps(report), flush=True)
(Path(sys.argv[2]) / f"met.{world.rank}").touch()
world.Barrier()
if sys.argv[1] == "die" and world.rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] != "end":
    time.sleep(1000)
