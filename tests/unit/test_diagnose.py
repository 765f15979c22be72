"""hvd-diagnose: what it says of flight recorders, and of files that are none."""

import json

import pytest

from hvd_keras.diagnostics import diagnose


def record(name, ended=True, occurrence=0, process_set=0, fingerprint=1, at=0, **fields):
    return {
        "number": 1,
        "kind": "allreduce",
        "name": name,
        "process_set": process_set,
        "occurrence": occurrence,
        "dtype": "float32",
        "reduce_op": "average",
        "tensors": 1,
        "shape": [3],
        "bytes": 12,
        "fingerprint": fingerprint,
        "posted_ns": 1000 + at,
        "started_ns": 2000 + at if ended else 0,
        "ended_ns": 3000 + at if ended else 0,
        "code": "",
        **fields,
    }


def write(folder, rank, records, size=2, abort="", process_sets=None):
    content = {
        "format": "hvd_keras flight recorder 1",
        "rank": rank,
        "size": size,
        "host": "node",
        "pid": 100 + rank,
        "written_by_rank": rank,
        "written_ns": 5_000_000_000,
        "abort": abort,
        "process_sets": process_sets or {"0": list(range(size))},
        "records": records,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(content))


def verdict(folder):
    return diagnose.diagnose(diagnose.load(folder)).verdict


def test_a_rank_that_did_not_come(tmp_path, capsys):
    write(tmp_path, 0, [record("a"), record("b", ended=False)])
    write(tmp_path, 1, [record("a")])
    assert diagnose.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "allreduce 'b': called by rank 0, not by rank 1" in out
    assert "Verdict: rank 0 wait in allreduce 'b' for rank 1, which did not call it." in out
    assert "rank 1 (host node, pid 101): last called allreduce 'a'" in out


def test_ranks_that_went_different_ways(tmp_path):
    write(tmp_path, 0, [record("left", ended=False)])
    write(tmp_path, 1, [record("right", ended=False, at=5)])
    assert verdict(tmp_path) == (
        "rank 0 wait in allreduce 'left' for rank 1, which wait in allreduce 'right': they have "
        "gone different ways."
    )


def test_ranks_that_disagree(tmp_path):
    write(tmp_path, 0, [record("x", code="InvalidArgument")])
    write(tmp_path, 1, [record("x", code="InvalidArgument", fingerprint=2, shape=[4])])
    assert verdict(tmp_path) == (
        "the ranks disagree about 'x': rank 0: allreduce of float32 [3]; rank 1: allreduce of "
        "float32 [4]."
    )


def test_the_same_name_again_is_another_call(tmp_path):
    write(tmp_path, 0, [record("x"), record("x", ended=False, occurrence=1)])
    write(tmp_path, 1, [record("x")])
    assert "allreduce 'x', call 2 of that name" in verdict(tmp_path)


def test_members_of_a_process_set(tmp_path):
    sets = {"0": [0, 1, 2], "1": [0, 2]}
    for rank in 0, 1, 2:
        records = [record("x", ended=False, process_set=1)] if rank == 0 else []
        write(tmp_path, rank, records, size=3, process_sets=sets)
    assert "for rank 2, which did not call it" in verdict(tmp_path)


def test_the_cause_of_an_abort_comes_first(tmp_path):
    text = "rank 1 (host node, pid 101) failed with an exception:\n  Traceback\n  ValueError: bad"
    write(tmp_path, 0, [record("x", ended=False)], abort=text)
    assert verdict(tmp_path).endswith("failed with an exception: ValueError: bad")
    lines = diagnose.diagnose(diagnose.load(tmp_path)).ranks
    assert "There is no file of rank 1." in lines


def test_nothing_wrong(tmp_path):
    for rank in 0, 1:
        write(tmp_path, rank, [record("x")])
    assert verdict(tmp_path) == "no collective is pending; the ranks agree."


def test_json(tmp_path, capsys):
    write(tmp_path, 0, [record("x")], size=1)
    assert diagnose.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["partings"] == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": "other"}',
        '{"format": "hvd_keras flight recorder 1", "rank": 0}',
        '{"format": "hvd_keras flight recorder 1", "rank": "x", "size": 1}',
    ],
)
def test_files_that_are_no_flight_recorders(tmp_path, content, capsys):
    (tmp_path / "rank-0.json").write_text(content)
    assert diagnose.main([str(tmp_path)]) == 2
    assert "rank-0.json is not a flight recorder" in capsys.readouterr().err


def test_folders_without_any(tmp_path, capsys):
    assert diagnose.main([str(tmp_path)]) == 2
    assert "there is no rank-R.json" in capsys.readouterr().err
    assert diagnose.main([str(tmp_path / "nowhere")]) == 2
