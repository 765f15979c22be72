"""Ranks that are started without hvdrun, with HVD_SEGMENT=shm:NAME."""

import os
import subprocess
import sys
import uuid

import pytest

SCRIPT = """
import os, signal, sys
import numpy as np
import hvd_keras as hvd
hvd.init()
assert not [n for n in os.listdir("/dev/shm") if os.environ["HVD_SEGMENT"][4:] in n]
print(hvd.allreduce(np.full(2, 3 + hvd.rank()), op=hvd.Sum).numpy().tolist(), flush=True)
if len(sys.argv) > 1 and hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.barrier()
"""
SMALL = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=512k tmpfs /dev/shm || exit 99; "$@"'


def start(rank, *words, before=(), size=2, name="", timeout="20"):
    env = {
        **os.environ,
        "HVD_RANK": str(rank),
        "HVD_SIZE": str(size),
        "HVD_SEGMENT": f"shm:{name}",
        "HVD_START_TIMEOUT": timeout,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HOME": "/proc",  # nothing can be written there
    }
    return subprocess.Popen(
        [*before, sys.executable, "-c", SCRIPT, *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes):
    results = []
    for process in processes:
        out, err = process.communicate(timeout=90)
        results.append((process.returncode, out, err))
    return results


@pytest.fixture
def name():
    name = uuid.uuid4().hex
    yield name
    assert not [entry for entry in os.listdir("/dev/shm") if name in entry]


def test_two_jobs_at_once(name):
    jobs = [start(rank, name=f"{name}{job}") for job in "ab" for rank in (0, 1)]
    for code, out, err in finish(jobs):
        assert code == 0, err
        assert "[7, 7]" in out


def test_a_rank_that_dies(name):
    survivor, victim = finish([start(rank, "die", name=name) for rank in (0, 1)])
    assert victim[0] == -9
    assert survivor[0] == 1
    assert "AbortedError" in survivor[2]
    assert "died: its own output, or that of whoever started it, says why" in survivor[2]


def test_a_shared_memory_that_is_too_small(name):
    probe = subprocess.run([*SMALL, MOUNT, "sh", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("user and mount namespaces are not permitted here")
    ((code, _, err),) = finish([start(0, name=name, before=[*SMALL, MOUNT, "sh"])])
    assert code == 1
    assert "bytes of shared memory (is /dev/shm or the container's memory limit too small?)" in err


def test_a_rank_whose_peer_never_comes(name):
    (first,) = finish([start(0, name=name, timeout="1")])
    assert first[0] == 1 and "waited 1 s for rank(s) 1, which did not call it" in first[2]
    (second,) = finish([start(1, name=name, timeout="1")])
    assert second[0] == 1 and "local rank 0 did not set up the shared segment in time" in second[2]
