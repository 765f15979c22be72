"""The settings of one process, read from environment variables.

This is the one place that reads them, apart from the launcher's own. Every ``HVD_X`` has the
synonym ``HOROVOD_X``; where both are set, ``HVD_X`` counts. An empty value counts as not set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Settings"]

_PREFIXES = ("HVD_", "HOROVOD_")

# At the 4 to 8 GB/s that ranks of one host exchange, 8 MiB take 1 to 2 ms: ten times what a
# collective costs to start, so larger buckets gain little, while smaller ones start earlier in the
# backward pass and leave less to wait for at its end.
DEFAULT_FUSION_THRESHOLD = 8 << 20

# How the launchers of MPI tell a process the number of its peers: Open MPI, MPICH and Intel MPI
# (srun --mpi=pmi2 as well), MVAPICH, IBM's jsrun.
_MPI_SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
)


@dataclass(frozen=True)
class Settings:
    """What a process has to know before it meets the others.

    Attributes:
        rank, size: this process and the number of processes.
        local_rank, local_size: the same among the processes of this host.
        cross_rank, cross_size: this host and the number of hosts.
        segment: where the host's shared segment lies; empty for a single process.
        mpi_size: the number of processes that an MPI launcher has started, this one among them; 0
            where there is none. The fields above are then found out by ``hvd_keras.mpi``.
        host_id: processes with the same one share memory; empty to find that out.
        host_timeout: seconds without a sign of life from another host after which it is given up.
        start_timeout: seconds to wait in ``init`` for all processes.
        fusion_threshold: bytes of gradients that travel as one bucket; 0 sends each on its own.
        deadlock_seconds: when all ranks wait, each for something that another one has not
            started, for that long, the collectives end with an error; 0 turns this off.
        stall_warning_seconds: collectives that some ranks have waited in for that long are
            reported; 0 for never.
        stall_shutdown_seconds: after that long they end the job; 0 for never.
        flight_recorder_dir: where the flight recorder is written; empty for a folder of the job's
            own among the temporary files.
        timeline: the file that the timeline is written to from ``init`` on; empty for none.
        timeline_mark_cycles: whether it marks when the engine begins to work.
        timeline_max_bytes: how many bytes a rank's timeline takes at most.
        chunk_bytes: bytes of one chunk of the shared segment.
        driver_log: address for messages to the program that started the ranks; empty for none.
        compat: whether ``import horovod`` is to give hvd_keras.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    segment: str = ""
    mpi_size: int = 0
    host_id: str = ""
    host_timeout: float = 6.0
    start_timeout: float = 30.0
    fusion_threshold: int = DEFAULT_FUSION_THRESHOLD
    deadlock_seconds: float = 1.0
    stall_warning_seconds: float = 60.0
    stall_shutdown_seconds: float = 0.0
    flight_recorder_dir: str = ""
    timeline: str = ""
    timeline_mark_cycles: bool = False
    timeline_max_bytes: int = 256 << 20
    chunk_bytes: int = 256 << 10
    driver_log: str = ""
    compat: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads the settings from ``environment`` (default: ``os.environ``).

        Raises:
            ValueError: a value does not parse or contradicts another one; the message names the
                variable, the value and what is accepted.
        """
        source = _Source(os.environ if environment is None else environment)
        values = _topology(source)
        values["host_id"] = source.text("HOST_ID", "")
        values["host_timeout"] = source.number("HOST_TIMEOUT_SECONDS", cls.host_timeout)
        values["start_timeout"] = source.number("START_TIMEOUT", cls.start_timeout)
        values["fusion_threshold"] = source.integer("FUSION_THRESHOLD", cls.fusion_threshold)
        values["deadlock_seconds"] = source.number("DEADLOCK_SECONDS", cls.deadlock_seconds)
        values.update(_stall_times(source))
        values["flight_recorder_dir"] = source.text("FLIGHT_RECORDER_DIR", "")
        values.update(_timeline(source))
        values["chunk_bytes"] = source.integer("CHUNK_BYTES", cls.chunk_bytes, minimum=64)
        values["driver_log"] = source.text("DRIVER_LOG", "")
        values["compat"] = source.flag("COMPAT")
        return cls(**values)


def _topology(source: _Source) -> dict:
    if source.find("RANK") is None and source.find("SIZE") is None:
        return {"mpi_size": source.mpi_size()}
    size = source.integer("SIZE", None, minimum=1)
    rank = source.integer("RANK", None, below=size, bound="SIZE")
    local_size = source.integer("LOCAL_SIZE", size, minimum=1)
    local_rank = source.integer(
        "LOCAL_RANK", rank % local_size, below=local_size, bound="LOCAL_SIZE"
    )
    cross_size = source.integer("CROSS_SIZE", max(1, size // local_size), minimum=1)
    cross_rank = source.integer(
        "CROSS_RANK", min(rank // local_size, cross_size - 1), below=cross_size, bound="CROSS_SIZE"
    )
    segment = source.text("SEGMENT", "")
    if size > 1 and not segment:
        raise ValueError(
            f"{source.name('SIZE')} is {size}, but HVD_SEGMENT is not set, so rank {rank} cannot "
            f"find the other ranks: start the script with 'hvdrun -np {size} python script.py', "
            "or set HVD_SEGMENT=shm:NAME, with a name of your choice, for every rank"
        )
    return {
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "local_size": local_size,
        "cross_rank": cross_rank,
        "cross_size": cross_size,
        "segment": segment,
    }


def _timeline(source: _Source) -> dict:
    path = source.text("TIMELINE", "")
    return {
        # Horovod's word for one that the script will start.
        "timeline": "" if path.upper() == "DYNAMIC" else path,
        "timeline_mark_cycles": source.flag("TIMELINE_MARK_CYCLES"),
        "timeline_max_bytes": source.integer("TIMELINE_MAX_MB", 256, minimum=1) << 20,
    }


def _stall_times(source: _Source) -> dict:
    warning = source.number("STALL_CHECK_TIME_SECONDS", Settings.stall_warning_seconds)
    shutdown = source.number("STALL_SHUTDOWN_TIME_SECONDS", Settings.stall_shutdown_seconds)
    if source.flag("STALL_CHECK_DISABLE"):
        return {"stall_warning_seconds": 0.0, "stall_shutdown_seconds": 0.0}
    if 0 < shutdown <= warning:
        raise ValueError(
            f"{source.name('STALL_SHUTDOWN_TIME_SECONDS')} is {shutdown:g}; expected more than "
            f"{source.name('STALL_CHECK_TIME_SECONDS')} ({warning:g}), after which a stall is "
            "reported, or 0 for never"
        )
    return {"stall_warning_seconds": warning, "stall_shutdown_seconds": shutdown}


class _Source:
    """Typed access to the variables; every error names the variable, its value and the remedy."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def find(self, suffix: str) -> tuple[str, str] | None:
        for prefix in _PREFIXES:
            value = self._environment.get(prefix + suffix, "").strip()
            if value:
                return prefix + suffix, value
        return None

    def name(self, suffix: str) -> str:
        found = self.find(suffix)
        return found[0] if found else _PREFIXES[0] + suffix

    def text(self, suffix: str, default: str) -> str:
        found = self.find(suffix)
        return found[1] if found else default

    def integer(
        self,
        suffix: str,
        default: int | None,
        *,
        minimum: int = 0,
        below: int | None = None,
        bound: str = "",
    ) -> int:
        accepted = f"a whole number of at least {minimum}"
        if below is not None:
            accepted += f" and less than {self.name(bound)} ({below})"
        found = self.find(suffix)
        if found is None:
            if default is None:
                other = self.name("SIZE" if suffix == "RANK" else "RANK")
                raise ValueError(
                    f"HVD_{suffix} is not set, but {other} is; expected {accepted}. The launcher "
                    "sets both: start the script with 'hvdrun -np N python script.py'"
                )
            return default
        name, text = found
        try:
            value = int(text)
        except ValueError:
            raise _unreadable(name, text, accepted) from None
        if value < minimum or (below is not None and value >= below):
            raise _unreadable(name, text, accepted)
        return value

    def number(self, suffix: str, default: float) -> float:
        found = self.find(suffix)
        if found is None:
            return default
        name, text = found
        accepted = "a number of seconds, 0 or more"
        try:
            value = float(text)
        except ValueError:
            raise _unreadable(name, text, accepted) from None
        if not 0 <= value < float("inf"):
            raise _unreadable(name, text, accepted)
        return value

    def flag(self, suffix: str) -> bool:
        found = self.find(suffix)
        if found is None:
            return False
        name, text = found
        values = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
        if text.lower() not in values:
            raise _unreadable(name, text, "0 or 1")
        return values[text.lower()]

    def mpi_size(self) -> int:
        expected = self.integer("EXPECTED_SIZE", 0)
        sizes = [self._environment.get(name, "") for name in _MPI_SIZE_VARIABLES]
        if "PMIX_RANK" in self._environment:  # srun --mpi=pmix
            sizes.append(self._environment.get("SLURM_NTASKS", ""))
        started = max((int(text) for text in sizes if text.isdigit()), default=0)
        # Alone, a process needs no MPI, whoever has started it.
        return max(expected, started) if max(expected, started) > 1 else 0


def _unreadable(name: str, text: str, accepted: str) -> ValueError:
    return ValueError(f"{name} is {text!r}; expected {accepted}")
