"""The environment that the launcher hands to each rank.

Together with ``hvd_keras/settings.py``, which reads it in the rank, this is the only module that
may look at ``os.environ``; the other functions here are pure.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

IDENTITY = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "SEGMENT")
IDENTITY_VARIABLES = tuple(f"HVD_{name}" for name in IDENTITY)

# What decides how many threads a process computes with. TensorFlow reads the first, OpenMP
# libraries (oneDNN, OpenBLAS, MKL) the second.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")

# The size that hvd.init() has to find where an MPI launcher started the ranks: one of another make
# than the MPI library would start N jobs of one rank each.
EXPECTED_SIZE_VARIABLE = "HVD_EXPECTED_SIZE"

# Where the ranks write their flight recorders when the job is aborted.
FLIGHT_RECORDER_VARIABLE = "HVD_FLIGHT_RECORDER_DIR"

# Ranks that have the same text here share memory; without it they find out.
HOST_ID_VARIABLE = "HVD_HOST_ID"

# Where the ranks of a runner's job find its driver (with the job's secret), and leave messages.
DRIVER_VARIABLE = "HVD_DRIVER"
DRIVER_LOG_VARIABLE = "HVD_DRIVER_LOG"

# Where the package "horovod" of hvd_keras.compat lies, and what says that it is used.
ALIAS_FOLDER = str(Path(__file__).resolve().parents[1] / "compat" / "alias")
ALIAS_VARIABLE = "HVD_COMPAT"


def current_environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def without_identity(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables that would make a child take itself for a rank.

    They are there when ``hvdrun`` runs inside a rank of another job.
    """
    identity = {f"{prefix}_{name}" for name in IDENTITY for prefix in ("HVD", "HOROVOD")}
    identity.add(EXPECTED_SIZE_VARIABLE)
    return {name: value for name, value in env.items() if name not in identity}


def with_flight_recorder(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with a folder for the job's flight recorders, which a rank makes when it needs it.

    Nobody can guess its name, so nobody can have put something in the way.
    """
    for name in (FLIGHT_RECORDER_VARIABLE, "HOROVOD_FLIGHT_RECORDER_DIR"):
        if env.get(name, "").strip():
            return {**env, FLIGHT_RECORDER_VARIABLE: env[name].strip()}
    folder = f"hvd-flight-recorder-{secrets.token_hex(8)}"
    return {**env, FLIGHT_RECORDER_VARIABLE: os.path.join(tempfile.gettempdir(), folder)}


def with_alias(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for processes in which ``import horovod`` gives hvd_keras (see hvd_keras.compat)."""
    before = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [ALIAS_FOLDER, *(path for path in before if path != ALIAS_FOLDER)]
    return {**env, "PYTHONPATH": os.pathsep.join(paths), ALIAS_VARIABLE: "1"}


def put_alias_first() -> None:
    """Makes the processes that this one starts use the alias."""
    env = with_alias(os.environ)
    identity = {name: env[name] for name in IDENTITY_VARIABLES if name in env}
    os.environ.update({**horovod_identity(env, identity), **env})


def horovod_identity(env: Mapping[str, str], identity: Mapping[str, str]) -> dict[str, str]:
    """The identity under the names that Horovod scripts read, where they use the alias."""
    if env.get(ALIAS_VARIABLE) != "1":
        return {}
    return {
        name.replace("HVD_", "HOROVOD_", 1): value
        for name, value in identity.items()
        if not name.endswith("_SEGMENT")
    }


# How the names begin that MPI's launchers and daemons give to variables.
_LAUNCHERS = r"OMPI|PMIX?|PRTE|ORTE|HYDI?|HYDRA"
# What MPI launchers and schedulers tell their own children, and what belongs to one host or shell.
_NOT_EXPORTED = re.compile(
    r"BASH_FUNC_.*|OLDPWD|PWD|SHLVL|_|HOSTNAME|SLURM_(PROC|LOCAL|NODE)ID"
    r"|.*CUDA_VISIBLE_DEVICES|_HOROVOD_SECRET_KEY"
    rf"|(SSH|XDG|DBUS|{_LAUNCHERS}|JSM|MV2_COMM|MPI_LOCAL|SLURM_STEP|PALS|ALPS)_.*"
)


def exported_names(env: Mapping[str, str]) -> list[str]:
    """The variables that the ranks of other hosts get, too, sorted.

    Names that are no names for a shell, and values with line breaks, are left out: not all
    launchers carry them.
    """
    return sorted(
        name
        for name, value in env.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
        and not _NOT_EXPORTED.fullmatch(name)
        and "\n" not in value
    )


# What MPI's launchers tell their children, beside what a rank has anyway.
_OF_MPI = re.compile(rf"({_LAUNCHERS}|OPAL|MPI|I_MPI)_.*")
# Of these, what is a user's wish, and no child's identity.
_WISHES = re.compile(r"(OMPI|PMIX|PRTE)_MCA_(?!orte_|ess|prte_(?!if_)).*|I_MPI_.*|HYDRA_.*")
_OF_SCHEDULERS = re.compile(r"(SLURMD?|PBS|LSB|LSF|JSM|CSM|MV2_COMM|PALS|ALPS|FLUX)_.*|PE_HOSTFILE")

_AGENTS_VARIABLE = "HVD_AGENTS"
_AGENTS_SECRET_VARIABLE = "HVD_AGENTS_SECRET"


def mpi_identity(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables of a process that an MPI launcher has started which came from there."""
    return {name: value for name, value in env.items() if _OF_MPI.fullmatch(name)}


def outside_of_jobs(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for an MPI launcher that shall know nothing of the job that this process is part of.

    Inside a scheduler's allocation, for example, it would use the scheduler's hosts.
    """
    return {
        name: value
        for name, value in without_identity(env).items()
        if not _OF_SCHEDULERS.fullmatch(name)
        and (_WISHES.fullmatch(name) or not _OF_MPI.fullmatch(name))
    }


def agents_variables(agents: Mapping[str, tuple[str, int]], secret: bytes) -> dict[str, str]:
    """How an MPI launcher's remote shell finds the agents; see hvd_keras.runner.mpi."""
    return {_AGENTS_VARIABLE: json.dumps(agents), _AGENTS_SECRET_VARIABLE: secret.hex()}


def agents(env: Mapping[str, str]) -> tuple[dict[str, tuple[str, int]], bytes]:
    """The inverse of ``agents_variables``."""
    found = {name: tuple(address) for name, address in json.loads(env[_AGENTS_VARIABLE]).items()}
    return found, bytes.fromhex(env[_AGENTS_SECRET_VARIABLE])


def mpi_rank_environment(
    env: Mapping[str, str], ranks_on_host: int | None, cores: int
) -> dict[str, str]:
    """The environment of a rank that an MPI launcher has started.

    Its identity is not in it: ``hvd.init()`` asks MPI.

    Args:
        env: the environment that the launcher gave it.
        ranks_on_host: how many ranks share the cores, None if nobody said so.
        cores: these cores.
    """
    expected = {name: env[name] for name in (EXPECTED_SIZE_VARIABLE,) if name in env}
    result = {**without_identity(env), **expected}
    result.update(thread_hints(result, ranks_on_host or 1, cores))
    result.setdefault("PYTHONUNBUFFERED", "1")
    return result


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
    identity = rank_identity(rank, size, segment)
    result.update(identity)
    result.update(horovod_identity(env, identity))
    return result


def become_rank(env: Mapping[str, str], rank: int, size: int, segment: str, cores: int) -> None:
    """Makes this process a rank of a single-host job; it can be made another one later.

    Args:
        env: variables to set beside those of ``rank_environment``, whose other arguments follow.
    """
    _become(rank_environment({**os.environ, **env}, rank, size, segment, cores))


def become_mpi_rank(env: Mapping[str, str], ranks_on_host: int, cores: int) -> None:
    """Makes this process a rank of an MPI job, whose identity is in ``env``.

    Args:
        env: variables to set beside those of ``mpi_rank_environment``, whose other arguments
            follow.
    """
    base = {**outside_of_jobs(os.environ), **env}
    _become(mpi_rank_environment(base, ranks_on_host, cores))


def export(name: str, value: str) -> None:
    """Sets a variable of this process."""
    os.environ[name] = value


def _become(chosen: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(chosen):
        del os.environ[name]
    os.environ.update(chosen)
