"""What one rank costs before it trains: python -m benchmarks.startup_rank JOB PREFIX.

Time of ``hvd.init()``, memory beyond TensorFlow's, and what an idle rank takes from others. Writes
its figures as protocol.py says.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import hvd_keras as hvd
from benchmarks import protocol
from benchmarks.figures import timed
from hvd_keras.gradients import reduce_gradients

VARIABLES, VARIABLE_BYTES = 32, 4 << 20
GATE_POLL_SECONDS = 0.001
GATE_DEADLINE = 120.0
WORK_SIZE, WORK_PRODUCTS = 256, 100


def meet(prefix: str, ranks: int) -> None:
    """Lets all ranks through at about the same time, before there is a job."""
    Path(f"{prefix}.{os.getpid()}.ready").touch()
    pattern = Path(prefix).name + ".*.ready"
    until = time.monotonic() + GATE_DEADLINE
    while len(list(Path(prefix).parent.glob(pattern))) < ranks:
        if time.monotonic() > until:
            raise TimeoutError(f"not all of {ranks} ranks have started in {GATE_DEADLINE:g} s")
        time.sleep(GATE_POLL_SECONDS)


def memory(field: str, file: str) -> int:
    """Bytes, from one line of a file in /proc/self."""
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(f"/proc/self/{file} has no {field}")


def use(function: object) -> dict[str, int]:
    """Bytes after some calls of a function, and at the peak during them."""
    assert callable(function)
    function()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(4):
        function()
    steady = sum(memory(f"Pss_{kind}", "smaps_rollup") for kind in ("Anon", "Shmem"))
    return {"peak": memory("VmHWM", "status"), "steady": steady}


def measure_memory(init: object) -> list[dict]:
    """What averaging gradients takes on top of a function with as many outputs."""
    assert callable(init)
    variables = [tf.Variable(np.ones(VARIABLE_BYTES // 4, np.float32)) for _ in range(VARIABLES)]
    local = tf.function(lambda: [variable + 1.0 for variable in variables])
    before = use(local)
    init()
    average = tf.function(lambda: reduce_gradients([v.value() for v in variables], variables))
    after = use(average)
    return [
        protocol.entry([max(0, after[kind] - before[kind])], what="memory", kind=kind)
        for kind in ("peak", "steady")
    ]


def work() -> None:
    a = np.ones((WORK_SIZE, WORK_SIZE), np.float32)
    for _ in range(WORK_PRODUCTS):
        a @ a


def measure_init_again(rounds: int) -> list[dict]:
    """``init`` after a shutdown, and the speed of a computation in a job and outside of one."""
    times: dict[str, list[float]] = {"init again": [], "work in a job": [], "work outside": []}
    for _ in range(rounds):
        hvd.barrier()
        times["work in a job"].append(timed(work))
        hvd.barrier()
        hvd.shutdown()
        times["work outside"].append(timed(work))
        times["init again"].append(timed(hvd.init))
    return [protocol.entry(values, what=name) for name, values in times.items()]


def measure_idle(seconds: float) -> list[dict]:
    """The CPU time that all threads of the process take while nothing is to be done."""
    hvd.barrier()
    time.sleep(0.5)
    before, begin = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - before) / (time.perf_counter() - begin)
    return [protocol.entry([share], what="idle CPU")]


def main() -> None:
    job, prefix = json.loads(sys.argv[1]), sys.argv[2]
    times: list[float] = []

    def init() -> None:
        meet(prefix, job["ranks"])
        times.append(timed(hvd.init))

    series = measure_memory(init)
    series.append(protocol.entry(times, what="first init"))
    if job["rounds"]:
        series += measure_init_again(job["rounds"])
        series += measure_idle(job["idle_seconds"])
    protocol.write(prefix, hvd.rank(), hvd.size(), {"tensorflow": tf.__version__}, series)


if __name__ == "__main__":
    main()
