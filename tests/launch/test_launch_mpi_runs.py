"""Jobs over MPI, with whatever launcher is there; the "other host" is this one, by a false ssh.

The commands need no MPI library: only what surrounds them is tested here.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

import hvd_keras
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.job import Job, MpiLaunch
from hvd_keras.launch.local import RunningJob
from hvd_keras.launch.mpi_find import find_mpi

SSH = """#!/bin/sh
while true; do
    case $1 in -p|-i|-o|-l) shift 2 ;; -*) shift ;; *) break ;; esac
done
echo "$1" >> "$SSH_LOG"
case $1 in
    otherhost) shift; SSH_HOST=otherhost exec /bin/sh -c "$*" ;;
    refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
    lost) exec sleep 600 ;;
    bare) shift; exec /bin/sh -c "$(echo "$*" | sed 's:/[^ ;]*python[^ ;]*:/no/python:g')" ;;
    *) echo "ssh: Could not resolve hostname $1: Name or service not known" >&2; exit 255 ;;
esac
"""
ROOT = str(Path(hvd_keras.__file__).parents[1])
HOST = os.uname().nodename
RANK = "r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


def _launcher_is_there() -> bool:
    try:
        find_mpi(["sh"], os.environ)
    except LaunchError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not _launcher_is_there(), reason="no mpirun or mpiexec on PATH or beside the interpreter"
)


@pytest.fixture
def mpi(hvdrun):
    """hvdrun with a false ssh."""
    path = hvdrun.folder / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text(SSH)
    path.chmod(0o755)
    hvdrun.env["PATH"] = f"{path.parent}{os.pathsep}{hvdrun.env['PATH']}"
    hvdrun.env["SSH_LOG"] = str(hvdrun.folder / "ssh.log")
    for name in list(hvdrun.env):
        if name.startswith(("OMPI_", "PMI", "PRTE_", "SLURM_", "HYDRA_")):
            del hvdrun.env[name]
    return hvdrun


def _sh(script: str) -> list[str]:
    return ["sh", "-c", f"{RANK}; {script}"]


def test_ranks_of_two_hosts(mpi):
    mpi.env["MINE"] = "a b'c"
    script = 'echo "$r on ${SSH_HOST:-here}: $MINE, $HVD_EXPECTED_SIZE, $(pwd)"; echo err >&2'
    done = mpi("-np", 4, "-H", "localhost:2,otherhost:2", *_sh(script))
    assert done.returncode == 0, done.stderr
    where = ["here", "here", "otherhost", "otherhost"]
    assert sorted(done.stdout.splitlines()) == [
        f"[{r}]<stdout>: {r} on {where[r]}: a b'c, 4, {mpi.folder}" for r in range(4)
    ]
    assert sorted(done.stderr.splitlines()) == [f"[{r}]<stderr>: err" for r in range(4)]


def test_output_files_and_timestamps(mpi):
    options = ("--output-filename", "logs", "-prefix-timestamp")
    done = mpi("-np", 2, "--mpi", *options, *_sh("echo out $r; echo err $r >&2"))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        folder = mpi.folder / "logs" / f"rank.{rank}"
        assert (folder / "stdout").read_text() == f"out {rank}\n"
        assert (folder / "stderr").read_text() == f"err {rank}\n"
        stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} "
        assert re.search(rf"(?m)^{stamp}\[{rank}\]<stdout>: out {rank}$", done.stdout)


def test_long_lines_of_several_ranks_stay_whole(mpi):
    script = "i=0; while [ $i -lt 300 ]; do printf '%05000d\\n' $r; i=$((i+1)); done"
    done = mpi("-np", 3, "--mpi", *_sh(script))
    assert done.returncode == 0, done.stderr
    expected = [f"[{r}]<stdout>: {r:05000d}" for r in range(3) for _ in range(300)]
    assert sorted(done.stdout.splitlines()) == expected


@pytest.mark.parametrize(
    ("death", "code", "how"),
    [("exit 7", 7, "exit code 7"), ("kill -KILL $$", 137, "killed by SIGKILL")],
)
def test_the_first_failure_is_named_and_the_others_may_report(mpi, death, code, how):
    script = f'if [ $r = 1 ]; then echo last words >&2; {death}; fi; sleep 1; echo "$r saw it"; '
    done = mpi("-np", 3, "-H", "localhost:1,otherhost:2", *_sh(script + f"exec sleep {mpi.nap}"))
    assert done.returncode == code
    for rank in (0, 2):
        assert f"[{rank}]<stdout>: {rank} saw it" in done.stdout
    last = done.stderr.splitlines()[-1]
    assert re.match(
        rf"hvdrun: rank 1 of 3 \(host {re.escape(HOST)}, pid \d+\) failed first: {how}",
        last,
    )
    assert last.endswith("hvdrun ended ranks 0, 2.")
    assert "last words" in done.stderr


def test_what_a_failed_rank_wrote_last_is_repeated_where_it_was_buried(mpi):
    script = (
        "if [ $r = 0 ]; then echo 'Traceback (most recent call last):' >&2; echo E: why >&2; "
        "exit 3; fi; sleep 1; echo and more >&2; sleep 600"
    )
    done = mpi("-np", 2, "--mpi", *_sh(script))
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    at = lines.index("hvdrun: rank 0 wrote last to stderr:")
    assert lines[at + 1 : at + 3] == ["  Traceback (most recent call last):", "  E: why"]
    assert "rank 0 of 2" in lines[-1]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_ranks(mpi, signum, code):
    script = f"touch started.$r; exec sleep {mpi.nap}"
    job = mpi.start("-np", 2, "-H", "localhost:1,otherhost:1", *_sh(script))
    mpi.wait_for_files("started.0", "started.1")
    job.send_signal(signum)
    done = mpi.finish(job)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"hvdrun: ended by {signum.name}")


def test_what_ranks_leave_running_is_ended(mpi):
    done = mpi("-np", 2, "--mpi", *_sh(f"setsid sleep {mpi.nap} & echo done"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"hvdrun: rank \d \(host .*\): ending what the ranks left", done.stderr)


def test_a_killed_hvdrun_leaves_nothing(mpi):
    script = f"touch started.$r; sleep {mpi.nap}"
    job = mpi.start("-np", 2, "-H", "localhost:1,otherhost:1", *_sh(script))
    mpi.wait_for_files("started.0", "started.1")
    job.kill()
    assert mpi.finish(job).returncode == -signal.SIGKILL


def test_hosts_that_cannot_be_used_are_all_named_with_the_cause(mpi):
    hosts = "otherhost:1,refused:1,unknown:1,bare:1"
    done = mpi("-np", 4, "-H", hosts, "-p", 2022, *_sh("touch started"))
    assert done.returncode == 2
    assert done.stderr.startswith("hvdrun: error: 3 of 4 other hosts cannot run ranks; nothing was")
    for line in (
        "  refused port 2022: the connection is refused: no sshd listens there",
        "  unknown port 2022: its name does not resolve",
    ):
        assert line in done.stderr.splitlines()
    assert re.search(r"(?m)^  bare port 2022: there is no .*python", done.stderr)
    assert not (mpi.folder / "started").exists()
    # Each was asked once.
    assert sorted((mpi.folder / "ssh.log").read_text().split()) == sorted(
        ["otherhost", "refused", "unknown", "bare"]
    )


def test_a_command_that_is_missing_here(mpi):
    done = mpi("-np", 2, "--mpi", "no-such-command-here")
    assert done.returncode == 2
    assert "no command 'no-such-command-here' on PATH" in done.stderr


def test_python_without_mpi4py(mpi):
    (mpi.folder / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")")
    mpi.env["PYTHONPATH"] += f"{os.pathsep}{mpi.folder}"
    done = mpi("-np", 2, "--mpi", sys.executable, "-c", "1")
    assert done.returncode == 2
    assert "needs mpi4py" in done.stderr
    assert "pip install mpi4py" in done.stderr


def test_ranks_that_do_not_start_in_time_are_missed(mpi):
    mpi.script(
        SSH.replace(
            "otherhost) shift;",
            "otherhost) shift; case $* in *missing*) ;; *) exec sleep 600 ;; esac;",
        ),
        "bin/ssh",
    )
    options = ("--start-timeout", 2, "--grace-seconds", 1)
    done = mpi("-np", 2, "-H", "localhost:1,otherhost:1", *options, *_sh("sleep 600"))
    assert done.returncode == 1
    assert "hvdrun: after 2 s only " in done.stderr
    assert "--network-interfaces" in done.stderr


FALSE_MPIRUN = """\
import os, signal, subprocess, sys
sys.path.insert(0, {root!r})
from hvd_keras.launch.rank_reports import RankReport
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
for report in {reports!r}:
    os.write(2, RankReport(*report).to_line())
signal.pause()
"""


def test_a_launcher_that_does_not_end_is_killed_and_the_hosts_are_named(hvdrun):
    reports = [
        ("started", 0, "node1", 11),
        ("started", 1, "node2", 12),
        ("ended", 1, "node2", 12, 5),
    ]
    script = hvdrun.script(FALSE_MPIRUN.format(root=ROOT, reports=reports))
    errors = hvdrun.folder / "errors"
    job = Job(
        command=[sys.executable, script],
        program=sys.executable,
        num_proc=2,
        prefix=False,
        report_seconds=0.0,
        grace_seconds=0.2,
        mpi=MpiLaunch("Open MPI 4.1.4", ["node1", "node2"], 60.0),
    )
    with open(errors, "w") as file:
        result = RunningJob(job, hvdrun.env, str(hvdrun.folder), stderr=file).wait()
    assert (result.exit_code, result.cause, result.first_failure) == (5, "failure", 1)
    *_, verdict, left = errors.read_text().splitlines()
    assert verdict.startswith("hvdrun: rank 1 of 2 (host node2, pid 12) failed first: exit code 5.")
    assert left == (
        "hvdrun: Open MPI 4.1.4 did not end and was killed; processes of the job may be left on "
        "node1."
    )
