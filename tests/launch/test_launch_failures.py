"""A rank fails: exit codes, who is blamed, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hvd_keras.launch import LaunchError, launch
from hvd_keras.launch.ending import at_once
from hvd_keras.launch.job import Job
from hvd_keras.launch.report import EndedRank, first_failure, make_result, summary, telling_lines

FAST = ("--report-seconds", "0.2", "--grace-seconds", "0.5")

HELPERS = """
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ["HVD_RANK"])

def touch(name):
    pathlib.Path(name).touch()

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""


def verdict(result):
    """The last line."""
    return result.stderr.splitlines()[-1]


def test_exit_code_and_traceback_of_the_failing_rank(hvdrun):
    result = hvdrun.run_python(
        3,
        HELPERS
        + """
if rank == 1:
    wait_for("ready0"); wait_for("ready2")
    raise KeyError("the culprit")
touch(f"ready{rank}")
time.sleep(100)
""",
        *FAST,
    )
    assert result.returncode == 1
    last = verdict(result)
    assert last.startswith("hvdrun: rank 1 of 3 (host ")
    assert os.uname().nodename in last
    assert "pid " in last
    assert "failed first: exit code 1." in last
    assert "ended ranks 0, 2" in last
    # Nothing came after the traceback, so it is not repeated.
    assert result.stderr.count("KeyError: 'the culprit'") == 1


@pytest.mark.parametrize("code", [3, 77, 255])
def test_exit_codes_pass_through(hvdrun, code):
    result = hvdrun.run_python(2, HELPERS + f"sys.exit({code} if rank else 0)", *FAST)
    assert result.returncode == code
    assert f"rank 1 of 2 (host {os.uname().nodename}" in verdict(result)


def test_death_by_signal(hvdrun):
    text = HELPERS + "os.kill(os.getpid(), signal.SIGSEGV) if rank == 0 else time.sleep(100)"
    result = hvdrun.run_python(2, text, *FAST)
    assert result.returncode == 128 + signal.SIGSEGV
    assert "rank 0 of 2" in verdict(result)
    assert "killed by SIGSEGV" in verdict(result)


def test_survivors_may_report_first_and_the_cause_comes_last(hvdrun):
    result = hvdrun.run_python(
        2,
        HELPERS
        + """
import atexit
if rank == 1:
    # Its end takes longer than that of the peer that notices: it is to blame all the same.
    atexit.register(wait_for, "peer_is_gone")
    try:
        raise ValueError("the cause")
    finally:
        import traceback
        sys.excepthook = lambda *e: (traceback.print_exception(*e), touch("failed"))
wait_for("failed")
import atexit
atexit.register(touch, "peer_is_gone")
raise RuntimeError("rank 1 has gone")
""",
        *FAST,
    )
    assert result.returncode == 1
    assert "rank 1 of 2" in verdict(result)
    assert "Then rank 0 (exit code 1) failed, too." in verdict(result)
    lines = result.stderr.splitlines()
    assert lines[-2] == "  ValueError: the cause"
    assert result.stderr.count("RuntimeError: rank 1 has gone") == 1
    assert result.stderr.count("ValueError: the cause") == 2  # as it came, and at the end


def test_a_rank_that_ignores_sigterm_is_killed(hvdrun):
    result = hvdrun.run_python(
        2,
        HELPERS
        + """
if rank == 1:
    wait_for("ready")
    sys.exit(9)
signal.signal(signal.SIGTERM, lambda *_: touch("got_sigterm"))
touch("ready")
while True:
    time.sleep(1)
""",
        *FAST,
    )
    assert result.returncode == 9
    assert (hvdrun.folder / "got_sigterm").exists()


def test_a_stopped_rank_is_ended(hvdrun):
    text = HELPERS + "os.kill(os.getpid(), signal.SIGSTOP) if rank == 0 else sys.exit(4)"
    assert hvdrun.run_python(2, text, *FAST).returncode == 4


def test_grandchildren_are_ended_even_in_sessions_of_their_own(hvdrun):
    result = hvdrun.run_python(
        2,
        HELPERS
        + """
ignore = "trap '' TERM; while :; do sleep 1; done"
for new_session in (False, True):
    for script in ("sleep 1000", ignore, "env -i sh -c 'sleep {nap} & sleep {nap}'"):
        subprocess.Popen(["sh", "-c", script], start_new_session=new_session)
touch(f"ready{rank}")
wait_for("ready0"); wait_for("ready1")
if rank == 0:
    sys.exit(5)
time.sleep(1000)
""".replace("{nap}", hvdrun.nap),
        *FAST,
    )
    assert result.returncode == 5


def test_leftovers_of_a_job_that_went_well_are_ended_and_named(hvdrun):
    result = hvdrun.run_python(
        2, HELPERS + "subprocess.Popen(['sleep', '1000'], start_new_session=True)", *FAST
    )
    assert result.returncode == 0
    assert "(sleep 1000)" in result.stderr


def test_leftovers_that_end_by_themselves_may(hvdrun):
    result = hvdrun.run_python(2, HELPERS + "subprocess.Popen(['sleep', '0.3'])")
    assert result.returncode == 0
    assert result.stderr == ""


def test_multiprocessing_in_ranks(hvdrun):
    hvdrun.script(
        """
import multiprocessing

def square(x):
    return x * x

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, range(4)))
"""
    )
    result = hvdrun("-np", 2, sys.executable, "script.py")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.count("[0, 1, 4, 9]") == 2


def test_the_last_output_of_ended_ranks_is_not_lost(hvdrun):
    result = hvdrun.run_python(
        2,
        HELPERS
        + """
if rank == 1:
    wait_for("ready")
    sys.exit(1)

def end(*_):
    print("x" * 100000)
    print("the end")
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
touch("ready")
while True:
    time.sleep(1)
""",
        *FAST,
    )
    assert result.stdout.splitlines() == ["[0]<stdout>: " + "x" * 100000, "[0]<stdout>: the end"]


def test_timeout(hvdrun):
    text = HELPERS + "time.sleep(1000 if rank == 1 else 0)"
    result = hvdrun.run_python(2, text, "--timeout-seconds", "1", *FAST)
    assert result.returncode == 124
    assert verdict(result) == (
        "hvdrun: the job took longer than 1 s and was ended; rank 1 of 2 had not finished."
    )


def test_launch_returns_how_each_rank_ended(hvdrun, tmp_path):
    name = hvdrun.script(HELPERS + "sys.exit(6) if rank == 1 else time.sleep(100)")
    with open(tmp_path / "err", "w+") as err:
        result = launch(
            [sys.executable, name], 2, env=hvdrun.env, cwd=tmp_path, stderr=err,
            report_seconds=0.1, grace_seconds=1.0,
        )  # fmt: skip
    assert (result.exit_code, result.cause, result.first_failure) == (6, "failure", 1)
    assert [rank.exit_code for rank in result.ranks] == [128 + signal.SIGTERM, 6]
    assert [rank.signal for rank in result.ranks] == [signal.SIGTERM, None]
    assert [rank.ended_by_launcher for rank in result.ranks] == [True, False]


def test_launch_raises_when_it_cannot_start(tmp_path):
    with pytest.raises(LaunchError, match="'nothing-of-that-name'"):
        launch(["nothing-of-that-name"], 2)
    with pytest.raises(LaunchError, match="not 0"):
        launch(["true"], 0)


def ended(rank, returncode=1, at=10.0, told=False, onset=None, stderr=()):
    return EndedRank(rank, 100 + rank, returncode, at, told, onset, list(stderr))


def test_who_failed_first():
    assert first_failure([ended(0, 0), ended(1, 0)]) is None
    assert first_failure([ended(0, 1, at=5.0), ended(1, 2, at=4.0)]).rank == 1
    # The traceback began first, the process ended last.
    assert first_failure([ended(0, at=5.0, onset=4.9), ended(1, at=6.0, onset=4.8)]).rank == 1
    # A traceback of long ago was not the end.
    assert first_failure([ended(0, at=25.0), ended(1, at=26.0, onset=1.0)]).rank == 0
    # A rank that was told to end is not to blame.
    assert first_failure([ended(0, -15, at=1.0, told=True), ended(1, at=6.0)]).rank == 1
    # One that MPI ended since its peer was gone, before it could say so.
    ended_by_mpi = ended(0, 14, at=1.0)._replace(lost_peer=True)
    assert first_failure([ended_by_mpi, ended(1, -9, at=2.0)]).rank == 1
    assert first_failure([ended_by_mpi]).rank == 0


@pytest.mark.parametrize(
    "message",
    [
        "rank 1 (host node7, pid 7) died: exit code 3.",
        "rank 1 (host node7, pid 7) failed with an exception:",
        "rank 1 has left the job (hvd.",
    ],
)
def test_a_rank_that_failed_over_the_loss_of_a_peer_is_not_to_blame(message):
    victim = ["Traceback (most recent call last):", "  File x", f"tf.AbortedError: {message}"]
    ranks = [ended(0, 1, at=5.0, onset=4.0, stderr=victim), ended(1, 3, at=6.0)]
    assert first_failure(ranks).rank == 1
    assert first_failure(ranks[:1]).rank == 0


def test_the_whole_chain_of_exceptions_is_told():
    first = ["Traceback (most recent call last):", "  File x", "KeyError: 1"]
    link = ["", "During handling of the above exception, another exception occurred:", ""]
    second = ["Traceback (most recent call last):", "  File y", "ValueError: 2"]
    assert telling_lines(["noise", *first, *link, *second]) == [*first, *link, *second]
    assert telling_lines([*first, "went on", *second]) == second
    assert telling_lines([str(i) for i in range(100)]) == [str(i) for i in range(70, 100)]
    long = telling_lines([first[0], *map(str, range(300))])
    assert len(long) == 121
    assert "left out" in long[60]


def test_a_job_without_failure_says_nothing():
    job = Job(["x"], "x", 2)
    assert summary(job, [ended(0, 0), ended(1, 0)], None) == []
    assert make_result([ended(0, 0), ended(1, 0)], None).exit_code == 0


def test_endings_take_each_step_once():
    job = Job(["x"], "x", 2, grace_seconds=5.0)
    ending = at_once("timeout", job, 100.0)
    assert ending.due(100.0).value == "SIGTERM"
    assert ending.due(104.0) is None
    assert ending.next_time == 105.0
    assert ending.due(105.0).value == "SIGKILL"
    assert ending.due(1000.0).value == "give up"
    assert ending.due(2000.0) is None


def test_the_supervisor_dies(hvdrun):
    process = hvdrun.python(2, HELPERS + "touch(f'ready{rank}')\nsubprocess.run(['sleep', '999'])")
    hvdrun.wait_for_files("ready0", "ready1")
    supervisors = [pid for pid, words in hvdrun.marked() if "supervisor.py" in words]
    assert len(supervisors) == 1
    time.sleep(0.2)
    os.kill(supervisors[0], signal.SIGKILL)
    result = hvdrun.finish(process)
    assert result.returncode == 1
    assert "the ranks were killed" in verdict(result)


def test_a_module_that_another_python_may_have(hvdrun):
    other = hvdrun.folder / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    result = hvdrun("-np", 1, "./python", "-c", "import no_such_module")
    assert result.returncode == 1
    assert f"the ranks ran ./python; this hvdrun belongs to {sys.executable}" in result.stderr
    result = hvdrun("-np", 1, sys.executable, "-c", "import no_such_module")
    assert "belongs to" not in result.stderr


def test_too_many_ranks_for_the_limits(hvdrun):
    text = f"ulimit -n 60; exec {sys.executable} -m hvd_keras.launch -np 100 sleep {hvdrun.nap}"
    done = subprocess.run(
        ["sh", "-c", text], env=hvdrun.env, cwd=hvdrun.folder, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "could not be started: Too many open files." in done.stderr
    assert len(done.stderr.splitlines()) == 1
