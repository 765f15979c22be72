"""Parts of jobs over MPI that are functions: ssh's errors, marked lines, configuration files."""

from __future__ import annotations

import pytest

from hvd_keras.launch.config_file import options_of, read_config
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.mpi_job import parse_words
from hvd_keras.launch.options import split_arguments
from hvd_keras.launch.rank_reports import LineJoiner, RankReport, cut_line, parse_report
from hvd_keras.launch.ssh_check import SshOptions, explain


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("ssh: Could not resolve hostname a: Name or service not known", "does not resolve"),
        ("ssh: connect to host a port 22: Connection refused", "no sshd listens"),
        ("ssh: connect to host a port 22: Connection timed out", "no answer within 10 s"),
        ("ssh: connect to host a port 22: No route to host", "no route"),
        ("Host key verification failed.", "host key is not known here"),
        ("No ED25519 host key is known for a\nHost key verification failed.", "not known here"),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "ssh-keygen -R",
        ),
        ("u@a: Permission denied (publickey,password).", "accepts no key of yours"),
        (
            "Warning: Identity file k not accessible: No such file or directory.\n"
            "u@a: Permission denied (publickey).",
            "identity file cannot be read",
        ),
        ("kex_exchange_identification: Connection closed by remote host", "before the login"),
        ("something new", "ssh failed: something new"),
        ("", "did not say why"),
    ],
)
def test_the_cause_of_a_failed_ssh_in_words(stderr, expected):
    assert expected in explain(255, stderr)


def test_a_command_that_failed_on_the_other_host():
    assert explain(127, "/bin/sh: not found\n") == (
        "the command there ended with exit code 127: /bin/sh: not found"
    )


def test_arguments_of_ssh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    assert SshOptions().arguments() == common
    assert SshOptions(22, "k").arguments() == ["-p", "22", "-i", str(tmp_path / "k"), *common]
    with pytest.raises(LaunchError, match="spaces"):
        SshOptions(None, "my key").arguments()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("length", [0, 98, 99, 100, 101, 1000])
def test_long_lines_are_cut_and_joined(length, end):
    lines = {rank: bytes([97 + rank]) * length + end for rank in (0, 11)}
    pieces = {rank: cut_line(rank, line, 100) for rank, line in lines.items()}
    assert all(len(piece) <= 100 for of_rank in pieces.values() for piece in of_rank)
    assert all(piece.endswith((b"\n", b"\r")) for of_rank in pieces.values() for piece in of_rank)
    joiner = LineJoiner()
    mixed = [piece for pair in zip(*pieces.values(), strict=False) for piece in pair]
    rest = max(pieces.values(), key=len)[len(min(pieces.values(), key=len)) :]
    joined = [joiner.feed(piece) for piece in [*mixed, *rest]]
    assert sorted(line for line in joined if line is not None) == sorted(lines.values())


def test_reports_are_found_among_other_lines():
    report = RankReport("ended", 3, "node", 17, -9, True, 'a "b"')
    line = report.to_line()
    assert line.count(b"\n") == 1
    assert parse_report(line) == (b"", report)
    assert parse_report(b"mpirun: " + line) == (b"mpirun: ", report)
    for other in (b"[0]<stderr>: text\n", line[:20] + b"\n", b"\n"):
        assert parse_report(other) == (other, None)


def test_a_report_is_short_enough_for_one_packet():
    assert len(RankReport("error", 10**6, "n" * 64, text='"' * 5000).to_line()) < 4096


def test_a_configuration_file_stands_for_options():
    content = {
        "controller": "mpi",
        "params": {"fusion_threshold_mb": 32, "hierarchical_allreduce": True},
        "autotune": {"enabled": False, "log_file": None},
        "stall_check": {"enabled": False, "warning_time_seconds": 12.5},
        "logging": {"level": "INFO", "with_timestamp": True},
        "timeline": None,
    }
    assert options_of(content, "f") == [
        "--mpi",
        "--fusion-threshold-mb=32",
        "--hierarchical-allreduce",
        "--no-autotune",
        "--no-stall-check",
        "--stall-check-warning-time-seconds=12.5",
        "--log-level=INFO",
        "--log-with-timestamp",
    ]
    # Each is an option that hvdrun has, or one of horovodrun's that it ignores.
    split = split_arguments(options_of(content, "f"))
    assert split.command == []
    assert options_of(None, "f") == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1], "expected sections"),
        ({"parms": {}}, "'parms' is not a section; there are controller, autotune,"),
        ({"params": {"cycle": 1}}, "params.cycle is not a setting; params has cache_capacity,"),
        ({"params": 3}, "'params' is not a section"),
        ({"stall_check": {"enabled": "perhaps"}}, "expected true or false"),
        ({"params": {"cycle_time_ms": [1]}}, "expected one value"),
        ({"controller": "ssh"}, "controller is 'ssh'; expected mpi, gloo, jsrun"),
    ],
)
def test_mistakes_in_a_configuration_file(content, expected):
    with pytest.raises(LaunchError) as caught:
        options_of(content, "f.yaml")
    assert expected in str(caught.value)
    assert "f.yaml" in str(caught.value)


def test_the_command_line_comes_before_the_file(hvdrun):
    pytest.importorskip("yaml")
    (hvdrun.folder / "c.yaml").write_text(
        "params:\n  fusion_threshold_mb: 1\nstall_check:\n  warning_time_seconds: 7\n"
    )
    show = 'echo "$HVD_FUSION_THRESHOLD $HVD_STALL_CHECK_TIME_SECONDS"'
    options = ("--config-file", "c.yaml", "--fusion-threshold-mb", 2)
    done = hvdrun("-np", 1, *options, "sh", "-c", show)
    assert done.stdout == f"[0]<stdout>: {2 << 20} 7\n", done.stderr


def test_a_file_that_is_no_yaml(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "c.yaml"
    path.write_text("a: [1")
    with pytest.raises(LaunchError, match="is not YAML"):
        read_config(str(path))


def test_without_pyyaml(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(LaunchError, match="pip install pyyaml"):
        read_config("any")


def test_values_may_begin_with_a_dash():
    split = split_arguments(["--mpi-args", "-x FOO --quiet", "--binding-args=-b", "sh", "-c"])
    assert split.own == ["--mpi-args=-x FOO --quiet", "--binding-args=-b"]
    assert split.command == ["sh", "-c"]
    assert parse_words("-x 'A B'", "--mpi-args") == ["-x", "A B"]
