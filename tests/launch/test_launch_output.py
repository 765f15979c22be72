"""The ranks' output: whole lines, nothing lost, nothing stuck."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from hvd_keras.launch.output import LineSplitter


def split(*pieces):
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines, splitter.flush()


def test_lines_are_cut_at_their_ends_only():
    assert split(b"one\ntw", b"o\nthr", b"ee") == ([b"one\n", b"two\n"], [b"three\n"])
    assert split(b"a\r\nb\r", b"\nc") == ([b"a\r\n", b"b\r\n"], [b"c\n"])
    assert split(b"10%\r", b"20%\r", b"30%") == ([b"10%\r", b"20%\r"], [b"30%\n"])
    assert split(b"x\r") == ([], [b"x\n"])
    assert split(b"\n\n") == ([b"\n", b"\n"], [])
    assert split(b"\r", b"\r", b"\n") == ([b"\r", b"\r\n"], [])


def test_lines_do_not_depend_on_the_pieces():
    text = b"one\r\ntwo\rthree\n\n\rfour\r\r\nfive"
    whole = split(text)
    for first in range(1, len(text)):
        for second in range(first, len(text)):
            pieces = [text[:first], text[first:second], text[second:]]
            assert split(*[piece for piece in pieces if piece]) == whole


def test_a_line_without_end_is_cut_at_last():
    splitter = LineSplitter()
    lines = [line for _ in range(40) for line in splitter.feed(b"x" * (1 << 20))]
    lines += splitter.flush()
    assert b"".join(line.rstrip(b"\n") for line in lines) == b"x" * (40 << 20)
    assert len(lines) > 1


def test_streams_stay_apart_and_partial_lines_come_out(hvdrun):
    result = hvdrun.run_python(
        2,
        """
import sys
sys.stdout.write("out\\nlast out"); sys.stderr.write("err\\nlast err")
""",
    )
    both = [(rank, text) for rank in (0, 1) for text in ("", "last ")]
    assert sorted(result.stdout.splitlines()) == sorted(
        f"[{rank}]<stdout>: {text}out" for rank, text in both
    )
    assert sorted(result.stderr.splitlines()) == sorted(
        f"[{rank}]<stderr>: {text}err" for rank, text in both
    )


def test_big_output_arrives_whole(hvdrun):
    lines, width = 20000, 300
    result = hvdrun.run_python(
        3,
        f"""
import os, sys
rank = os.environ["HVD_RANK"]
for i in range({lines}):
    os.write(1, (rank * {width} + " %d\\n" % i).encode())
    if i % 10 == 0:
        os.write(2, (rank * {width} + " %d\\n" % i).encode())
""",
    )
    assert result.returncode == 0
    for rank in "012":
        for text, stream, step in ((result.stdout, "stdout", 1), (result.stderr, "stderr", 10)):
            mark = f"[{rank}]<{stream}>: "
            own = [line for line in text.splitlines() if line.startswith(mark)]
            assert own == [f"{mark}{rank * width} {i}" for i in range(0, lines, step)]


def test_pieces_of_lines_are_never_mixed(hvdrun):
    hvdrun.script(
        """
import os, sys
rank = os.environ["HVD_RANK"]
for i in range(300):
    for fd in (1, 2):
        for _ in range(5):
            os.write(fd, rank.encode() * 2000)
        os.write(fd, b"\\n")
"""
    )
    process = hvdrun.start("-np", 4, sys.executable, "script.py", stderr=subprocess.STDOUT)
    result = hvdrun.finish(process)
    lines = result.stdout.splitlines()
    assert len(lines) == 4 * 2 * 300
    for line in lines:
        assert re.fullmatch(r"\[(\d)\]<std(out|err)>: \1{10000}", line), line[:100]


def test_output_files(hvdrun):
    text = "import os, sys\nprint('out', os.environ['HVD_RANK']); print('err', file=sys.stderr)"
    result = hvdrun.run_python(2, text, "--output-filename", "logs/run1")
    assert "[1]<stdout>: out 1" in result.stdout
    for rank in (0, 1):
        folder = hvdrun.folder / "logs" / "run1" / f"rank.{rank}"
        assert (folder / "stdout").read_text() == f"out {rank}\n"
        assert (folder / "stderr").read_text() == "err\n"


def test_output_directory_that_cannot_be_made(hvdrun):
    (hvdrun.folder / "file").write_text("")
    result = hvdrun("-np", 2, "--output-filename", "file/logs", "true")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "file/logs" in result.stderr


def test_full_disk_ends_the_job(hvdrun):
    (hvdrun.folder / "logs" / "rank.1").mkdir(parents=True)
    (hvdrun.folder / "logs" / "rank.1" / "stdout").symlink_to("/dev/full")
    text = "import time\nprint('x')\ntime.sleep(100)"
    result = hvdrun.run_python(2, text, "--output-filename", "logs")
    assert result.returncode == 1
    assert "stdout of rank 1" in result.stderr
    assert "No space left" in result.stderr
    assert "[1]<stdout>: x" in result.stdout


def test_timestamps(hvdrun):
    result = hvdrun("-np", 1, "--prefix-output-with-timestamp", "echo", "hello")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}"
    assert re.fullmatch(stamp + r" \[0\]<stdout>: hello\n", result.stdout)


def test_a_reader_that_stops_ends_the_job(hvdrun):
    text = "import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(0.01)"
    process = hvdrun.python(2, text)
    assert process.stdout.readline().endswith(": x\n")
    process.stdout.close()
    process.stdout = None
    result = hvdrun.finish(process)
    assert result.returncode != 0
    assert "cannot write the output" in result.stderr


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_stuck_reader_does_not_stop_signals(hvdrun, sent):
    text = """
import os, pathlib
pathlib.Path("ready" + os.environ["HVD_RANK"]).touch()
while True:
    os.write(1, b"x" * 1000 + b"\\n")
"""
    process = hvdrun.python(2, text)
    hvdrun.wait_for_files("ready0", "ready1")
    process.send_signal(sent)
    # Nobody has read yet; the ranks are gone all the same.
    names = ("script.py",)
    assert hvdrun.wait_for(
        lambda: not [1 for _, words in hvdrun.marked() if words.split()[1:2] == list(names)]
    )
    result = hvdrun.finish(process)
    assert result.returncode == 128 + sent
    assert all(
        re.fullmatch(r"\[\d\]<stdout>: x{1,1000}", line) for line in result.stdout.splitlines()
    )


def test_a_terminal(hvdrun):
    leader, follower = os.openpty()
    process = hvdrun.start("-np", 2, "sh", "-c", "echo hello; seq 500", stdout=follower)
    os.close(follower)
    text = b""
    while text.count(b"\n") < 2 * 501:
        text += os.read(leader, 4096)
    assert hvdrun.finish(process).returncode == 0
    os.close(leader)
    assert text.count(b"<stdout>: hello\r\n") == 2


def test_closed_standard_descriptors(hvdrun):
    command = f"exec {sys.executable} -m hvd_keras.launch -np 2 sh -c 'echo x; echo y >&2' "
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", command + closed],
            env=hvdrun.env,
            cwd=hvdrun.folder,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, (closed, done)
        assert (done.stdout.count(": x\n") == 2) == (">&-" not in closed.replace("2>&-", ""))


def test_a_regular_file_is_appended_to(hvdrun):
    path = hvdrun.folder / "log"
    with open(path, "w") as log:
        log.write("before\n")
        log.flush()
        process = hvdrun.start("-np", 2, "seq", 2000, stdout=log, stderr=log)
        hvdrun.finish(process)
    lines = path.read_text().splitlines()
    assert lines[0] == "before"
    assert sorted(lines[1:]) == sorted(
        f"[{rank}]<stdout>: {i}" for rank in (0, 1) for i in range(1, 2001)
    )
