"""The timeline of a job: files of all ranks, what is in them, and that they are whole."""

import json
import os
import signal
from collections import Counter

import pytest

from hvd_keras.diagnostics.timeline_analysis import analyse
from hvd_keras.diagnostics.timeline_files import read_timelines


@pytest.fixture(autouse=True)
def deadline(hvdrun):
    """The ranks import TensorFlow."""
    hvdrun.deadline = 120


LOOP = """
import numpy as np, hvd_keras as hvd
hvd.init()
for i in range({count}):
    hvd.allreduce(np.full(10, hvd.rank() + 1.0, "float32"), name=f"loop.{{i % 7}}")
"""


def events(path):
    """The events of a file, which has to be JSON at whatever moment it is read."""
    return json.loads(path.read_text())


def count(path, name):
    return sum(event["name"] == name for event in events(path))


def test_every_rank_writes_what_it_has_called(hvdrun):
    done = hvdrun.run_python(
        3,
        """
import time
import numpy as np, hvd_keras as hvd
hvd.init()
hvd.barrier("together")
for _ in range(4):
    if hvd.rank() == 1:
        time.sleep(0.05)
    hvd.allreduce(np.full(1000, hvd.rank() + 1.0, "float32"), name="sum")
hvd.allgather(np.zeros((hvd.rank() + 1, 2), "float32"), name="gather")
hvd.broadcast(np.zeros(5, "int32"), 2, name="cast")
hvd.reducescatter(np.zeros(6, "float32"), name="scatter")
hvd.alltoall(np.zeros(3, "float32"), name="all")
pair = hvd.add_process_set([0, 2])
if hvd.rank() != 1:
    hvd.allreduce(np.zeros(3, "float64"), name="pair", process_set=pair)
""",
        "--timeline-filename",
        hvdrun.folder / "t" / "x.json",
        "--timeline-mark-cycles",
    )
    assert done.returncode == 0, done.stderr
    files = {0: "x.json", 1: "x.rank-1.json", 2: "x.rank-2.json"}
    assert sorted(path.name for path in (hvdrun.folder / "t").iterdir()) == sorted(files.values())
    expected = {
        "together": 1, "sum": 4, "gather": 1, "cast": 1, "scatter": 1, "all": 1,
    }  # fmt: skip
    for rank, name in files.items():
        found = events(hvdrun.folder / "t" / name)
        assert found[0]["name"] == "hvd_keras_timeline"
        assert {event["pid"] for event in found} == {rank}
        calls = [e for e in found if "collective" in e.get("args", {})]
        names = Counter(e["name"] for e in calls)
        names = {n: c for n, c in names.items() if n in expected or n == "pair"}
        assert names == expected | ({"pair": 1} if rank != 1 else {})
        kinds = Counter(e["name"] for e in found)
        assert kinds["SUBMIT"] == len(calls) == kinds["CALLBACK"]
        assert kinds["CYCLE_START"] > 0 and kinds["EXPOSED"] > 0
        for kind in ("ALLREDUCE", "ALLGATHER", "BCAST", "REDUCESCATTER", "ALLTOALL", "BARRIER"):
            assert kinds[f"NEGOTIATE_{kind}"] == kinds[f"SHM_{kind}"] > 0, kind
        for phase in ("MEMCPY_IN_FUSION_BUFFER", "REDUCE"):
            assert kinds[phase] > 0
        by_name = {e["name"]: e["args"] for e in calls}
        assert by_name["sum"]["bytes"] == 4000 and by_name["sum"]["dtype"] == "float32"
        assert by_name["gather"]["bytes"] == (rank + 1) * 8
        assert_last_of_sum(found, 1)
        assert_parts_lie_within(found)


def assert_last_of_sum(found, rank):
    """Who was last to call 'sum'."""
    at = [i for i, event in enumerate(found) if event["name"] == "sum"]
    lasts = [found[i + 1]["args"]["last_rank"] for i in at]
    assert all(found[i + 1]["name"] == "NEGOTIATE_ALLREDUCE" for i in at)
    assert lasts == [rank] * len(at)


def assert_parts_lie_within(found):
    """Slices of one track follow each other, or lie within each other."""
    tracks = {}
    for event in found:
        if event["ph"] == "X" and event["tid"] < 100:
            # In whole nanoseconds: sums of floats would differ in their last bits.
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            tracks.setdefault(event["tid"], []).append((begin, -length, begin + length))
    for some in tracks.values():
        open_until = []
        for begin, _, end in sorted(some):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_the_report_knows_who_was_late(hvdrun):
    done = hvdrun.run_python(
        2,
        """
import time
import numpy as np, hvd_keras as hvd
hvd.init()
hvd.start_timeline("late/")
hvd.barrier("together")
for _ in range(5):
    if hvd.rank() == 1:
        time.sleep(0.2)
    hvd.allreduce(np.ones(4, "float32"), name="a")
hvd.stop_timeline()
print("late", hvd.stats()["last"])
""",
    )
    assert done.returncode == 0, done.stderr
    analysis = analyse(read_timelines([hvdrun.folder / "late"]))
    share = {share.rank: share for share in analysis.shares}
    assert analysis.ranks == [0, 1] and not analysis.has_steps
    cost = next(cost for cost in analysis.costs if cost.name == "a")
    assert (cost.calls, cost.bytes, cost.last_rank, cost.last_share) == (5, 16, 1, 1.0)
    assert share[1].late > share[0].late
    # What rank 0 has waited for rank 1 nothing has hidden.
    assert share[0].exposed > 0.9


def test_files_are_whole_while_the_job_runs_and_after_a_kill(hvdrun):
    process = hvdrun.python(
        2,
        LOOP.format(count=10**9).replace(
            "hvd.init()",
            "hvd.init(); import os; open(f'pid.{hvd.rank()}', 'w').write(str(os.getpid()))",
        ),
        "--timeline-filename",
        "x.json",
    )
    files = [hvdrun.folder / "x.json", hvdrun.folder / "x.rank-1.json"]
    hvdrun.wait_for_files("pid.0", "pid.1", "x.json", "x.rank-1.json")
    reads = []

    def has_grown():
        reads.append([count(path, "SUBMIT") for path in files])
        return min(reads[-1]) > 2000

    assert hvdrun.wait_for(has_grown), reads[-5:]
    assert len({tuple(some) for some in reads}) > 2  # read while it grew
    os.kill(int((hvdrun.folder / "pid.1").read_text()), signal.SIGKILL)
    done = hvdrun.finish(process)
    assert done.returncode == 128 + signal.SIGKILL
    for path in files:
        assert count(path, "SUBMIT") > 2000
    assert len(read_timelines([files[0]])) == 2


def test_after_ctrl_c_the_last_events_are_there(hvdrun):
    process = hvdrun.python(
        2,
        LOOP.format(count=20)
        + """
open(f"looped.{hvd.rank()}", "w")
import time
time.sleep(1000)
""",
        "--timeline-filename",
        "x.json",
    )
    hvdrun.wait_for_files("looped.0", "looped.1")
    process.send_signal(signal.SIGINT)
    hvdrun.finish(process)
    for name in ("x.json", "x.rank-1.json"):
        assert count(hvdrun.folder / name, "SHM_ALLREDUCE") == 20
    assert sorted(p.name for p in hvdrun.folder.glob(".x*")) == []


def test_a_full_disk_ends_the_timeline_and_not_the_job(hvdrun):
    done = hvdrun.run_python(
        2,
        """
import hvd_keras, resource
hvd_keras.init()
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
"""
        + LOOP.format(count=500)
        + """
hvd.stop_timeline()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print("dropped", hvd.stats()["timeline_dropped"] > 0)
""",
        "--timeline-filename",
        "x.json",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("dropped True") == 2
    for rank, name in enumerate(("x.json", "x.rank-1.json")):
        path = hvdrun.folder / name
        assert path.stat().st_size <= 30_000
        assert events(path)[0]["args"]["rank"] == rank
        said = f"the timeline of rank {rank} lacks events: cannot write to"
        assert done.stderr.count(said) == 1
    assert "File too large" in done.stderr


def test_old_parts_go_when_there_is_too_much(hvdrun):
    hvdrun.env["HVD_TIMELINE_MAX_MB"] = "1"
    hvdrun.env["HOROVOD_TIMELINE"] = "x.json"
    done = hvdrun.run_python(2, LOOP.format(count=3000))
    assert done.returncode == 0, done.stderr
    for stem, rank in (("x", 0), ("x.rank-1", 1)):
        files = [*hvdrun.folder.glob(f"{stem}.part-*.json"), hvdrun.folder / f"{stem}.json"]
        assert len(files) == 3
        assert sum(path.stat().st_size for path in files) <= 1 << 20
        assert all(events(path)[0]["args"]["rank"] == rank for path in files)
    timelines = read_timelines([hvdrun.folder / "x.json"])
    assert [len(timeline.paths) for timeline in timelines] == [3, 3]
    assert all("parts of its timeline are gone" in t.notes[0] for t in timelines)
    # The last calls are there, in order and without a gap.
    for timeline in timelines:
        calls = [e["args"]["occurrence"] for e in timeline.events if e["name"] == "loop.3"]
        assert calls == list(range(calls[0], 3000 // 7 + 1))[: len(calls)] and len(calls) > 50


def test_it_can_be_started_on_one_rank_and_again(hvdrun):
    hvdrun.env["HOROVOD_TIMELINE"] = "DYNAMIC"
    done = hvdrun.run_python(
        2,
        """
import numpy as np, hvd_keras as hvd
hvd.init()
one = np.ones(3, "float32")
for run in range(2):
    if hvd.rank() == 1:
        hvd.start_timeline(f"run{run}.json")
        try:
            hvd.start_timeline("other.json")
        except RuntimeError as error:
            assert "is being written already" in str(error) and "run" in str(error), error
        else:
            raise AssertionError("started twice")
    for _ in range(run + 2):
        hvd.allreduce(one, name="a")
    hvd.stop_timeline()
hvd.allreduce(one, name="after")
try:
    hvd.start_timeline("/proc/none/x.json")
except OSError:
    print("refused")
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 2
    names = sorted(path.name for path in hvdrun.folder.glob("*.json"))
    assert names == ["run0.rank-1.json", "run1.rank-1.json"]
    assert [count(hvdrun.folder / name, "SHM_ALLREDUCE") for name in names] == [2, 3]


def test_the_command_line_says_what_it_wants(hvdrun):
    done = hvdrun("-np", 1, "--timeline-filename")
    assert done.returncode == 2 and "--timeline-filename" in done.stderr


@pytest.mark.parametrize(("value", "message"), [("much", "whole number"), ("0", "at least 1")])
def test_a_size_that_is_none_is_an_error(hvdrun, value, message):
    hvdrun.env["HVD_TIMELINE_MAX_MB"] = value
    done = hvdrun.run_python(1, "import hvd_keras as hvd; hvd.init()")
    assert done.returncode == 1
    assert "HVD_TIMELINE_MAX_MB" in done.stderr and message in done.stderr
