"""What an MPI launcher starts for each rank: hands its identity to the real one.

``stand_in.py MEETING SECONDS``: the name of the job's meeting, and how long to wait for the rank.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":  # started by path, isolated from the user's modules
    # The package without its __init__.py, which needs others that are not on this path.
    _package = types.ModuleType("hvd_keras")
    _package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["hvd_keras"] = _package

import contextlib
import json
import os
import socket
import time

from hvd_keras.launch import environment
from hvd_keras.launch.schedulers import find_placement
from hvd_keras.runner.mpi.identity import DONE, is_own, rendezvous

_CONNECT_SECONDS = 0.05
# The kernel could tell of the daemon's end only of that of a thread of it, or not before Linux 5.3.
_POLL_SECONDS = 1.0


def main(meeting: str, seconds: float) -> int:
    """Hands the identity over and stays as long as the rank and MPI; returns an exit code."""
    daemon = os.getppid()
    env = environment.current_environment()
    placement = find_placement(env)
    if placement is None:
        print("the MPI launcher did not tell a process its rank", file=sys.stderr)
        return 1
    rank = _connected(rendezvous(meeting, placement.rank), time.monotonic() + seconds)
    if rank is None:
        print(f"rank {placement.rank} is not on the host that MPI has put it on", file=sys.stderr)
        return 1
    variables = environment.mpi_identity(env)
    # Some daemons talk to their children through a descriptor.
    fds = [int(variables["PMI_FD"])] if variables.get("PMI_FD", "").isdigit() else []
    with rank, contextlib.suppress(OSError):
        socket.send_fds(rank, [json.dumps(variables).encode() + b"\n"], fds)
        rank.shutdown(socket.SHUT_WR)
        rank.settimeout(_POLL_SECONDS)
        while os.getppid() == daemon:
            with contextlib.suppress(TimeoutError):
                if rank.recv(1) == DONE:
                    return 0
                break
    # The rank has failed. An exit would make the launcher end the others, which may have something
    # to say: whoever has started the ranks will end MPI's daemon, or has been killed with it.
    while os.getppid() == daemon:
        time.sleep(_POLL_SECONDS)
    return 1


def _connected(address: bytes, until: float) -> socket.socket | None:
    """Waits for the rank to listen."""
    while time.monotonic() < until:
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            rank.connect(address)
            if is_own(rank):
                return rank
        rank.close()
        time.sleep(_CONNECT_SECONDS)
    return None


if __name__ == "__main__":
    os.chdir("/")
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
