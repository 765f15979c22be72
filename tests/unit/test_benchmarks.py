"""The logic of the benchmark suite: statistics, protocol, ratios, tables, and what is measured."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import launchers, models, protocol
from benchmarks.figures import Summary, interleave, ratio, significant
from benchmarks.parts import collectives, guard, training
from benchmarks.peers import PEERS, Environment
from benchmarks.programs import ENGINE, OURS, Program, ProgramFailed, run_all, run_in_turns
from benchmarks.protocol import ProtocolError, Result, entry, make_key
from benchmarks.report import Table, absence_notes
from benchmarks.runs import Runs
from benchmarks.targets import HOROVODS, MPIS, Target, make_targets


def test_summary_is_the_median_with_the_quartiles():
    assert Summary.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Summary(3.0, 2.0, 4.0, 5)
    assert Summary.of([7.0]) == Summary(7.0, 7.0, 7.0, 1)
    with pytest.raises(ValueError, match="no figures"):
        Summary.of([])


def test_numbers_have_so_many_significant_digits():
    assert significant(0.01234) == "0.012"
    assert significant(1.234) == "1.23"
    assert significant(123.4) == "123"
    assert significant(12345.6) == "12,346"
    assert Summary(0.5, 0.25, 1.0, 3).text(1e3) == "500 (250-1,000)"
    assert Summary(0.951, 0.94, 0.96, 3).percent() == "95.1 % (94.0-96.0)"
    assert Summary(0.5, 0.5, 0.5, 1).percent() == "50 %"


def test_a_ratio_divides_figures_of_the_same_round():
    # The machine was twice as slow in the second round, for both.
    assert ratio([2.0, 4.0], [1.0, 2.0]) == Summary(2.0, 2.0, 2.0, 2)
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0])


def test_variants_take_turns_each_after_a_barrier():
    calls = []
    variants = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = interleave(variants, 2, before=lambda: calls.append("|"), warm_up=1)
    assert "".join(calls) == "|a|b" * 3
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 2, "b": 2}


# The protocol.


def write_ranks(folder, *values_by_rank, size=None):
    prefix = f"{folder}/figures"
    for rank, values in enumerate(values_by_rank):
        series = [entry(values, what="allreduce", bytes=64)]
        protocol.write(prefix, rank, size or len(values_by_rank), {"library": "1"}, series)
    return prefix


def test_the_slowest_rank_counts(tmp_path):
    result = protocol.read(write_ranks(tmp_path, [1, 5, 3], [2, 4, 3]), 2)
    assert result.series == {make_key({"bytes": 64, "what": "allreduce"}): [2, 5, 3]}
    assert result.versions == {"library": "1"}


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    with pytest.raises(ProtocolError, match="rank 1 of 2 has left no figures"):
        protocol.read(write_ranks(tmp_path, [1], size=2), 2)
    with pytest.raises(ProtocolError, match=r"expected .* rank 0 of 1, got .* rank 0 of 2"):
        protocol.read(write_ranks(tmp_path, [1], [1]), 1)
    with pytest.raises(ProtocolError, match=r"\[1, 2\] figures"):
        protocol.read(write_ranks(tmp_path, [1], [1, 2]), 2)
    prefix = write_ranks(tmp_path, [1], [1])
    protocol.write(prefix, 1, 2, {}, [entry([1], what="other")])
    with pytest.raises(ProtocolError, match="ranks 0 and 1 have not measured the same"):
        protocol.read(prefix, 2)
    protocol.rank_file(prefix, 1).write_text("no JSON")
    with pytest.raises(ProtocolError, match="rank 1 of 2 has left no figures"):
        protocol.read(prefix, 2)


# Rounds of programs.


def runs_of(**rounds_by_program):
    runs = Runs(2)
    for program, rounds in rounds_by_program.items():
        for values in rounds:
            runs.add(program, Result(series={make_key({"what": "x"}): values}))
    return runs


def test_ratios_are_of_the_medians_of_each_round():
    # 2 and 4 in either round, though the second round was ten times slower.
    runs = runs_of(a=[[2.0, 2.0, 9.0], [40.0]], b=[[1.0], [10.0]])
    assert runs.ratio(("a", {"what": "x"}), ("b", {"what": "x"})) == Summary(3.0, 2.5, 3.5, 2)
    assert runs.ratio(("a", {"what": "x"}), ("b", {"what": "y"})) is None
    assert runs.summary("a", what="x").count == 4
    assert runs.summary("c", what="x") is None


def test_a_program_that_fails_is_absent_and_says_why():
    runs = runs_of(a=[[1.0]])
    runs.give_up("a", "it ended with exit code 3\nmore")
    assert runs.summary("a", what="x") is None
    assert absence_notes(runs.absent) == ["absent: a: it ended with exit code 3"]
    json.dumps(runs.as_json())


def python(script):
    return Program("script", "", launchers.own_by_hand, native=lambda job, prefix: [
        sys.executable, "-c", script, prefix, json.dumps(job)])  # fmt: skip


RANK = """
import json, os, pathlib, sys
rank, size, job = int(os.environ["HVD_RANK"]), int(os.environ["HVD_SIZE"]), json.loads(sys.argv[2])
series = [{"key": {"what": "x"}, "values": [rank + job["add"]]}]
content = {"rank": rank, "size": size, "versions": {}, "series": series}
pathlib.Path(f"{sys.argv[1]}.{rank}.json").write_text(json.dumps(content))
"""


def test_programs_are_started_once_in_each_round_and_one_failure_ends_one():
    broken = Program("broken", "", launchers.own_by_hand, native=lambda job, prefix: ["false"])
    runs = run_in_turns([broken, python(RANK)], 3, {"add": 10}, rounds=2, deadline=60)
    assert runs.values("script", what="x") == [12, 12]
    assert runs.absent == {"broken": "it ended with exit code 1"}


def test_a_program_that_does_not_end_is_ended():
    with pytest.raises(ProgramFailed, match="has not ended in time"):
        run_all([["sleep", "60"], ["true"]], deadline=0.2)


# Peers and parts.


def test_an_environment_that_cannot_be_made_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.ENVIRONMENTS", tmp_path)
    environment = Environment("x", (("nothing",),), programs=("no-such-program",))
    assert environment.absence() == "not installed: make bench-peers"
    assert environment.install() == environment.absence() == "needs no-such-program"
    old = Environment("x", (("nothing",),), pythons=("python0.1",))
    assert old.install() == "needs one of python0.1"


def test_every_peer_has_a_backend():
    folder = Path(launchers.__file__).parent / "backends"
    assert all((folder / f"{peer.backend}.py").is_file() for peer in PEERS)
    assert len({peer.name for peer in PEERS}) == len(PEERS)


def test_gradient_sets_are_those_of_the_models():
    for name, variables, numbers in (
        ("ResNet-50", 161, 25_557_032),
        ("BERT-base", 199, 109_482_240),
    ):
        shapes = models.GRADIENT_SETS[name]()
        assert (len(shapes), sum(int(np.prod(s)) for s in shapes)) == (variables, numbers)


class FakeBackend:
    """Its graphs take no time to call, and their allreduces none either."""

    rank, size, dtypes = 0, 1, ("float32",)

    def __init__(self):
        self.calls = []

    def barrier(self):
        pass

    def memcpy(self, sizes, repeat):
        return lambda: None

    def allreduce(self, nbytes, dtype, repeat):
        names = ("eager", "tf.function, one", "tf.function, chain")
        return {name: (lambda name=name: self.calls.append(name)) for name in names}


def test_collectives_are_measured_as_slopes_over_a_chain():
    backend = FakeBackend()
    series = collectives.measure(backend, collectives.make_job([64], quick=True))
    variants = [one["key"]["variant"] for one in series]
    # float16 and bfloat16 are not among the backend's types.
    assert variants == ["memcpy", "eager", "tf.function, one", "tf.function"]
    assert backend.calls[:3] == ["eager", "tf.function, one", "tf.function, chain"]


def test_the_guard_has_floors_that_good_figures_pass_and_bad_ones_do_not():
    def checks(slow):
        runs = Runs(2)
        key = collectives.series_key
        sizes = guard.LARGE, guard.SMALL
        engine = {("memcpy", sizes[0]): 1.0, ("engine", sizes[0]): 1.1 * slow}
        engine[("engine", sizes[1])] = 5e-6 * slow
        series = {make_key(key(*name)): [value] for name, value in engine.items()}
        runs.add(ENGINE, Result(series=series))
        ours = {make_key(key("memcpy", sizes[0])): [1.0]}
        ours[make_key(key("tf.function", sizes[0]))] = [1.2 * slow]
        for variant, value in ((training.PLAIN, 1.0), (training.PARALLEL, 1.1 * slow)):
            ours[make_key({"what": "MLP", "variant": variant})] = [value]
        runs.add(OURS, Result(series=ours))
        return {check.what: check for check in guard.make_checks(runs, 1e-7)}

    good, bad = checks(1), checks(10)
    held = {what for what, check in good.items() if check.holds}
    assert {what for what, check in good.items() if check.ratio} == held
    assert len(held) == 4
    assert not any(check.holds for check in bad.values())
    missing = next(check for what, check in good.items() if what.startswith("idle"))
    assert missing.row()[""] == "NOT MEASURED"


def test_targets_are_printed_as_what_they_are():
    share = Target("a", Summary(0.95, 0.94, 0.96, 3), 0.9)
    assert share.row() == {
        "what": "a",
        "target": "at least 90 %",
        "measured": "95.0 % (94.0-96.0)",
        "reached": "yes",
    }
    time = Target("b", Summary(31e-6, 30e-6, 32e-6, 3), 30, False, "us", 1e6)
    assert (time.row()["target"], time.row()["reached"]) == ("at most 30 us", "NO")
    assert Target("c", None, 1.0).row()["reached"] == "not measured"


def test_targets_take_the_best_of_the_peers():
    runs = Runs(2)
    key = collectives.series_key
    for program, variant, seconds in (
        (ENGINE, "engine", 10e-6),
        (OURS, "tf.function", 20e-6),
        (MPIS[0], "host", 30e-6),
        (MPIS[1], "host", 5e-6),
        (HOROVODS[0], "eager", 90e-6),
        (HOROVODS[0], "tf.function", 60e-6),
    ):
        series = {make_key(key(variant, nbytes)): [seconds] for nbytes in (64, 1 << 20)}
        first = runs.results.setdefault(program, [Result()])[0]
        first.series.update(series)
    targets = {t.what: t.measured for t in make_targets({("collectives", 2): runs}, True, None)}
    assert targets["1 MiB: best MPI / engine alone"].median == pytest.approx(0.5)
    assert targets["64 KiB: best MPI / engine alone"] is None
    assert targets["64 B: Horovod's best / tf.function"].median == pytest.approx(3.0)
    assert targets["fit, MLP, 2 ranks: with / without exchange"] is None


def test_tables_for_a_terminal_and_for_markdown():
    table = Table("T", [{"size": "64 B", "us": "1.5"}, {"size": "1 MiB", "ms": "a|b"}], ["note"])
    assert table.text().splitlines() == [
        "T",
        "size   us   ms",
        "64 B   1.5  -",
        "1 MiB  -    a|b",
        "note",
    ]
    assert table.markdown().splitlines()[2:6] == [
        "| size | us | ms |",
        "| --- | --- | --- |",
        "| 64 B | 1.5 | - |",
        "| 1 MiB | - | a\\|b |",
    ]
    assert Table("T", [], ["absent: x: why"]).text() == "T\nabsent: x: why"
