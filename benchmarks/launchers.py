"""How ranks are started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.programs import Launcher


def hvdrun(ranks: int, command: list[str]) -> list[list[str]]:
    return [[str(Path(sys.executable).with_name("hvdrun")), "-np", str(ranks), *command]]


def by_hand(variables: Callable[[int, int], Mapping[str, str]]) -> Launcher:
    """One command for each rank, with the variables that ``variables(rank, ranks)`` gives it."""

    def commands(ranks: int, command: list[str]) -> list[list[str]]:
        return [
            [
                "env",
                *(f"{name}={value}" for name, value in variables(rank, ranks).items()),
                *command,
            ]
            for rank in range(ranks)
        ]

    return commands


def own_variables() -> Callable[[int, int], Mapping[str, str]]:
    """For ranks of hvd_keras without its launcher."""
    segment = f"shm:hvd-bench-{uuid.uuid4().hex[:12]}"
    return lambda rank, ranks: {
        "HVD_RANK": str(rank),
        "HVD_SIZE": str(ranks),
        "HVD_SEGMENT": segment,
    }


def own_by_hand(ranks: int, command: list[str]) -> list[list[str]]:
    return by_hand(own_variables())(ranks, command)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def torch_by_hand(ranks: int, command: list[str]) -> list[list[str]]:
    port = free_port()
    return by_hand(
        lambda rank, ranks: {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    )(ranks, command)


def tf_config_by_hand(ranks: int, command: list[str]) -> list[list[str]]:
    workers = [f"127.0.0.1:{free_port()}" for _ in range(ranks)]
    return by_hand(
        lambda rank, ranks: {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            )
        }
    )(ranks, command)


def mpi(mpiexec: str, *options: str) -> Launcher:
    """With an MPI's own launcher; ``options`` after it."""

    def commands(ranks: int, command: list[str]) -> list[list[str]]:
        return [[mpiexec, *options, "-n", str(ranks), *command]]

    return commands


def open_mpi(mpiexec: str, *options: str) -> Launcher:
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return mpi(mpiexec, *as_root, "--oversubscribe", "--bind-to", "none", *options)


def find(*names: str) -> str | None:
    """The first of these programs that there is."""
    return next((path for path in map(shutil.which, names) if path), None)
