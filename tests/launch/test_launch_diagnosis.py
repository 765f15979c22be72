"""A rank that dies, leaves, stops or sleeps: what the others and hvdrun say of it."""

import json
import re
import signal
import sys

import pytest

from hvd_keras.diagnostics import diagnose

SCRIPT = """
import os, signal, sys, time
import numpy as np
import hvd_keras as hvd

hvd.init()
how = sys.argv[1]
for i in range(3):
    hvd.allreduce(np.ones(4), name=f"step.{i}")

def lose_it():
    if how in ("SIGKILL", "SIGSEGV", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how == "exception":
        raise ValueError("bad batch")
    elif how == "sleep":
        time.sleep(2.5)
    elif how == "dump":
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(0.5)
    else:
        sys.exit(int(how))

begin = time.monotonic()
try:
    if hvd.rank() == 1:
        time.sleep(0.3)  # the others wait by now
        lose_it()
    hvd.allreduce(np.ones(4), name="step.3")
    print("went on")
except Exception as error:
    print("TOLD", type(error).__name__, f"{time.monotonic() - begin:.1f}", error, flush=True)
    raise
"""


def run(hvdrun, how, **env):
    hvdrun.env.update({"TF_CPP_MIN_LOG_LEVEL": "3", **env})
    hvdrun.env["HVD_FLIGHT_RECORDER_DIR"] = str(hvdrun.folder / "flight")
    return hvdrun("-np", 3, sys.executable, hvdrun.script(SCRIPT), how)


def told(done):
    """What ranks 0 and 2 were told, and after how many seconds."""
    found = re.findall(r"\[([02])\]<stdout>: ?TOLD (\w+) ([\d.]+) (.*)", done.stdout)
    assert sorted(rank for rank, *_ in found) == ["0", "2"], done.stdout + done.stderr
    assert {kind for _, kind, *_ in found} == {"AbortedError"}
    return [text for *_, text in found]


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("SIGKILL", 137, "died: killed by SIGKILL (out of memory?)"),
        ("SIGSEGV", 139, "died: killed by SIGSEGV"),
        ("exception", 1, "failed with an exception:"),
        ("3", 3, "has left the job"),
        ("0", 1, "has left the job"),
    ],
)
def test_survivors_are_told_who_and_how(hvdrun, how, code, said):
    done = run(hvdrun, how)
    assert done.returncode == code
    for text in told(done):
        assert re.search(r"rank 1 (\(host \S+, pid \d+\) |has left)", text)
        assert said in text
    if how == "exception":
        assert done.stdout.count("  ValueError: bad batch") == 2  # in the others' messages
        assert "hvdrun: rank 1 wrote last to stderr:" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hvdrun: rank 1 of 3 ") or how == "0"
    assert f"hvd-diagnose {hvdrun.folder}/flight" in done.stderr
    diagnosis = diagnose.diagnose(diagnose.load(hvdrun.folder / "flight"))
    assert diagnosis.partings == ["allreduce 'step.3': called by ranks 0, 2, not by rank 1"]
    assert "rank 1 " in diagnosis.verdict and ("bad batch" in diagnosis.verdict) == (
        how == "exception"
    )


def test_a_stall_is_reported_with_the_place_where_the_rank_is(hvdrun):
    done = run(hvdrun, "sleep", HVD_STALL_CHECK_TIME_SECONDS="0.5")
    assert done.returncode == 0 and done.stdout.count("went on") == 3
    assert done.stderr.count("hvd_keras: stall: some ranks have waited for ") == 1
    assert "allreduce 'step.3': called by ranks 0,2, not by rank 1" in done.stderr
    assert "The last that it called is allreduce 'step.2'" in done.stderr
    assert "time.sleep(2.5)" in done.stderr and "in lose_it" in done.stderr


def test_a_stopped_rank_ends_the_job_where_that_is_asked_for(hvdrun):
    done = run(
        hvdrun,
        "SIGSTOP",
        HVD_STALL_CHECK_TIME_SECONDS="0.5",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="2",
    )
    assert done.returncode == 1
    for text in told(done):
        assert "HVD_STALL_SHUTDOWN_TIME_SECONDS" in text
    assert "is stopped by a signal" in done.stdout + done.stderr
    assert "not by rank 1" in done.stdout


def test_the_flight_recorder_is_written_at_sigusr2(hvdrun):
    done = run(hvdrun, "dump")
    assert done.returncode == 0
    assert "hvd_keras: flight recorder written to " in done.stderr
    (path,) = (hvdrun.folder / "flight").iterdir()
    assert path.name == "rank-1.json"
    records = json.loads(path.read_text())["records"]
    assert [record["name"] for record in records] == ["step.0", "step.1", "step.2"]
    assert all(
        record["posted_ns"] <= record["started_ns"] <= record["ended_ns"] for record in records
    )
    assert records[0]["shape"] == [4] and records[0]["dtype"] == "float64"


def test_a_handler_of_the_scripts_own_stays(hvdrun):
    script = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: print("mine"))
import hvd_keras as hvd
hvd.init()
os.kill(os.getpid(), signal.SIGUSR2)
hvd.barrier()
"""
    done = hvdrun.run_python(2, script)
    assert done.returncode == 0 and done.stdout.count("mine") == 2
    assert signal.SIGUSR2.name not in done.stderr
