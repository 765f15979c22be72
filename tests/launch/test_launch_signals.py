"""Signals to hvdrun, and its own violent end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

HELPERS = """
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ["HVD_RANK"])

def touch(name):
    pathlib.Path(f"{name}{rank}").touch()

def ready_and_wait():
    touch("ready")
    while True:
        time.sleep(0.05)
"""


def started(hvdrun, text, *options, num_proc=2):
    """A job whose ranks have all come to ``ready_and_wait``."""
    process = hvdrun.python(num_proc, HELPERS + text, *options)
    hvdrun.wait_for_files(*[f"ready{rank}" for rank in range(num_proc)])
    return process


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ending_signals_reach_all_ranks(hvdrun, sent):
    process = started(hvdrun, "ready_and_wait()")
    process.send_signal(sent)
    result = hvdrun.finish(process)
    assert result.returncode == 128 + sent
    assert result.stderr.splitlines()[-1] == f"hvdrun: ended by {sent.name}."
    assert result.stderr.count("KeyboardInterrupt\n") == 2 * (sent == signal.SIGINT)


def test_ranks_that_end_well_after_a_signal_are_a_success(hvdrun):
    text = """
def save(*_):
    time.sleep(0.3 * rank)
    touch("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
ready_and_wait()
"""
    process = started(hvdrun, text)
    process.terminate()
    assert hvdrun.finish(process).returncode == 0
    hvdrun.wait_for_files("saved0", "saved1")


def test_ranks_that_do_not_heed_a_signal_are_killed(hvdrun):
    text = "signal.signal(signal.SIGTERM, lambda *_: touch('got'))\nready_and_wait()"
    process = started(hvdrun, text, "--grace-seconds", "0.5")
    process.terminate()
    result = hvdrun.finish(process)
    assert result.returncode == 128 + signal.SIGTERM
    assert "ranks 0, 1 had to be killed" in result.stderr
    hvdrun.wait_for_files("got0", "got1")


def test_second_interrupt_kills_at_once(hvdrun):
    text = "signal.signal(signal.SIGINT, lambda *_: touch('got'))\nready_and_wait()"
    process = started(hvdrun, text)
    process.send_signal(signal.SIGINT)
    hvdrun.wait_for_files("got0", "got1")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    result = hvdrun.finish(process)
    assert result.returncode == 128 + signal.SIGINT
    assert "again to kill them" in result.stderr


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_reach_the_ranks_but_not_their_children(hvdrun, sent):
    text = f"""
child = subprocess.Popen(["sleep", "1000"])
def end(*_):
    touch("got")
    sys.exit(3 if child.poll() is not None else 0)
signal.signal({int(sent)}, end)
ready_and_wait()
"""
    process = started(hvdrun, text, "--grace-seconds", "0.5")
    process.send_signal(sent)
    assert hvdrun.finish(process).returncode == 0
    hvdrun.wait_for_files("got0", "got1")


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_stop_and_continue(hvdrun):
    process = started(hvdrun, "touch('pid')\nready_and_wait()")
    ranks = [pid for pid, words in hvdrun.marked() if words.endswith("python script.py ")]
    ranks = ranks or [pid for pid, words in hvdrun.marked() if words.endswith(" script.py ")]
    ranks = [pid for pid in ranks if pid != process.pid]
    assert len(ranks) == 2
    process.send_signal(signal.SIGTSTP)
    assert hvdrun.wait_for(lambda: [state(pid) for pid in [process.pid, *ranks]] == ["T"] * 3)
    process.send_signal(signal.SIGCONT)
    assert hvdrun.wait_for(lambda: "T" not in [state(pid) for pid in [process.pid, *ranks]])
    process.terminate()
    assert hvdrun.finish(process).returncode == 128 + signal.SIGTERM


def test_ignored_signals_stay_ignored(hvdrun):
    name = hvdrun.script(
        HELPERS + "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\nready_and_wait()"
    )
    hvdrun_words = f"{sys.executable} -m hvd_keras.launch -np 2 {sys.executable} {name}"
    command = f"trap '' HUP; exec {hvdrun_words}"
    process = subprocess.Popen(
        ["sh", "-c", command],
        env=hvdrun.env,
        cwd=hvdrun.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    hvdrun.wait_for_files("ready0", "ready1")
    process.send_signal(signal.SIGHUP)
    process.terminate()
    result = hvdrun.finish(process)
    assert result.returncode == 128 + signal.SIGTERM
    assert result.stdout.count("True") == 2


def test_nothing_survives_the_sudden_death_of_hvdrun(hvdrun):
    text = f"""
subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True)
subprocess.Popen(["env", "-i", "sleep", "{hvdrun.nap}"], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: None)
ready_and_wait()
"""
    process = started(hvdrun, text, "--grace-seconds", "0.5")
    process.kill()
    result = hvdrun.finish(process)  # checks that nothing is left
    assert result.returncode == -signal.SIGKILL


def test_death_of_the_whole_group_of_hvdrun(hvdrun):
    name = hvdrun.script(HELPERS + "subprocess.Popen(['sleep', '1000'])\nready_and_wait()")
    options = ["-np", 2, "--grace-seconds", "0.5", sys.executable, name]
    process = hvdrun.start(*options, start_new_session=True)
    hvdrun.wait_for_files("ready0", "ready1")
    os.killpg(process.pid, signal.SIGKILL)
    assert hvdrun.finish(process).returncode == -signal.SIGKILL


def test_a_job_inside_a_job(hvdrun):
    inner = hvdrun.script(HELPERS + "ready_and_wait()", "inner.py")
    launcher = [sys.executable, "-m", "hvd_keras.launch"]
    process = hvdrun.start("-np", 1, *launcher, "-np", 2, sys.executable, inner)
    hvdrun.wait_for_files("ready0", "ready1")
    process.send_signal(signal.SIGINT)
    result = hvdrun.finish(process)
    assert result.returncode == 128 + signal.SIGINT
