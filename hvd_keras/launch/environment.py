"""The environment that the launcher hands to each rank.

Together with ``hvd_keras/settings.py``, which reads it in the rank, this is the only module that
may look at ``os.environ``; the other functions here are pure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

IDENTITY = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "SEGMENT")

# What decides how many threads a process computes with. TensorFlow reads the first, OpenMP
# libraries (oneDNN, OpenBLAS, MKL) the second.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


def current_environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def without_identity(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables that would make a child take itself for a rank.

    They are there when ``hvdrun`` runs inside a rank of another job.
    """
    identity = {f"{prefix}_{name}" for name in IDENTITY for prefix in ("HVD", "HOROVOD")}
    return {name: value for name, value in env.items() if name not in identity}


def thread_hints(env: Mapping[str, str], ranks_on_host: int, cores: int) -> dict[str, str]:
    """The thread counts to set so that the ranks of one host share its cores.

    Every TensorFlow process starts as many compute threads as the machine has cores; N of them
    hinder each other. A rank of several gets ``cores // ranks_on_host`` threads, at least one.
    A variable that is set already is the user's choice and is not touched.
    """
    if ranks_on_host < 2:
        return {}
    threads = str(max(1, cores // ranks_on_host))
    return {name: threads for name in THREAD_VARIABLES if name not in env}


def rank_identity(rank: int, size: int, segment: str) -> dict[str, str]:
    """The variables that tell one rank of a single-host job who it is."""
    return {
        "HVD_RANK": str(rank),
        "HVD_SIZE": str(size),
        "HVD_LOCAL_RANK": str(rank),
        "HVD_LOCAL_SIZE": str(size),
        "HVD_CROSS_RANK": "0",
        "HVD_CROSS_SIZE": "1",
        "HVD_SEGMENT": segment,
    }


def rank_environment(
    env: Mapping[str, str], rank: int, size: int, segment: str, cores: int
) -> dict[str, str]:
    """The whole environment of one rank of a single-host job.

    Args:
        env: the environment to start from, usually the launcher's.
        rank: this rank, 0 to ``size - 1``.
        size: number of ranks.
        segment: address of the host's shared segment.
        cores: cores that the ranks of this host share.
    """
    result = without_identity(env)
    result.update(thread_hints(result, size, cores))
    # A pipe makes Python buffer whole blocks: lines would come late, and be lost at a kill.
    result.setdefault("PYTHONUNBUFFERED", "1")
    result.update(rank_identity(rank, size, segment))
    return result
