"""What the figures were measured on: the machine, its regime, and the versions of what was used."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from benchmarks import native

PACKAGES = ["tensorflow", "tensorflow-cpu", "keras", "tf_keras", "numpy", "mpi4py", "hvd_keras"]

# Between two cores that share a cache, an exchange of 8 bytes takes less than this: 0.06 us was
# seen, and 0.24 us between two that do not.
SHARED_CACHE_SECONDS = 0.15e-6


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _caches() -> dict[str, str]:
    caches = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        words = [(folder / name).read_text().strip() for name in ("level", "type", "size")]
        if words[1] != "Instruction":
            caches[f"L{words[0]}"] = words[2]
    return caches


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def probe() -> dict[str, float]:
    """Measures what two processes get now: seconds of an exchange of 8 bytes, and memcpy.

    The bytes per second are those that are copied, by one process alone and by each of two.
    """
    program = native.build("machine_probe", with_library=False)
    answer = subprocess.run([program], check=True, capture_output=True, text=True, timeout=120)
    exchange, alone, both = map(float, answer.stdout.split())
    load = os.getloadavg()[0]
    return {
        "exchange_seconds": exchange,
        "memcpy_one": alone,
        "memcpy_each_of_two": both,
        "load": load,
    }


def regime(figures: dict[str, float]) -> str:
    """'A' where two cores share a cache, 'B' where they do not: see docs/performance.md."""
    return "A" if figures["exchange_seconds"] < SHARED_CACHE_SECONDS else "B"


def probe_text(figures: dict[str, float]) -> str:
    return (
        f"regime {regime(figures)}: 8 bytes exchanged in "
        f"{figures['exchange_seconds'] * 1e6:.2f} us; "
        f"memcpy {figures['memcpy_one'] / 1e9:.1f} GB/s by one process, "
        f"{figures['memcpy_each_of_two'] / 1e9:.1f} by each of two; "
        f"load {figures['load']:.1f}"
    )


def describe() -> dict:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "memory_gib": round(_memory_gib(), 1),
        "kernel": platform.release(),
        "versions": versions(),
    }
