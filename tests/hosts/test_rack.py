"""The hosts themselves: separate, of limited rate, to be cut, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import namespaces, rack
from hosts.rack import Hosts

PROGRAMS = Path(__file__).with_name("programs")
DEADLINE = 30.0


def wait_for(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_hosts_have_names_addresses_and_ssh_between_them(make_hosts):
    hosts = make_hosts(3)
    for host in hosts.names:
        for other in hosts.names:
            line = 'echo "$(hostname) $SSH_CONNECTION"'
            result = hosts.run(host, ["ssh", other, line])
            assert result.returncode == 0, result.stderr
            name, source, _, target, port = result.stdout.split()
            assert (name, target, port) == (other, hosts.address(other), "22")
            assert source == hosts.address(host)


def test_sshd_on_another_port(make_hosts):
    hosts = make_hosts(2, ssh_port=2222)
    assert hosts.run("host1", ["ssh", "-p", "2222", "host2", "hostname"]).stdout == "host2\n"
    assert "refused" in hosts.run("host1", ["ssh", "host2", "hostname"]).stderr


def test_hosts_share_the_disk_but_not_their_private_folders(make_hosts):
    hosts = make_hosts(2)
    for folder in ("/tmp", "/run", "/dev/shm"):
        name = f"{folder}/hvd-test-{os.getpid()}"
        assert hosts.run("host1", ["touch", name]).returncode == 0
        assert hosts.run("host1", ["test", "-e", name]).returncode == 0
        assert hosts.run("host2", ["test", "-e", name]).returncode == 1
        assert not Path(name).exists()
    (hosts.shared / "seen").write_text("by all")
    assert hosts.run("host2", ["cat", "seen"]).stdout == "by all"
    # What the ranks run: this Python and this source tree, also where they lie below /tmp.
    code = "import hvd_keras; print(hvd_keras.__file__)"
    result = hosts.run("host2", [sys.executable, "-c", code], cwd=rack.ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(rack.ROOT))


def test_hosts_do_not_see_each_others_processes(make_hosts):
    hosts = make_hosts(2)
    process = hosts.popen("host1", ["sleep", "1000"])
    assert wait_for(lambda: "sleep 1000" in hosts.processes("host1").values())
    assert hosts.processes("host2") == {}
    seen = hosts.run("host2", ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert "sshd" in seen.stdout and "sleep 1000" not in seen.stdout
    hosts.kill(process)
    assert wait_for(lambda: hosts.processes("host1") == {})


def test_orphans_do_not_stay_as_zombies(make_hosts):
    hosts = make_hosts(1)
    assert hosts.run("host1", ["sh", "-c", "(sleep 0.05 &)"]).returncode == 0

    def zombies() -> str:
        return hosts.run("host1", ["sh", "-c", "grep -l 'State:.Z' /proc/[0-9]*/status"]).stdout

    assert wait_for(lambda: hosts.processes("host1") == {} and zombies() == "")


def test_run_ends_what_takes_too_long(make_hosts):
    hosts = make_hosts(1)
    with pytest.raises(subprocess.TimeoutExpired, match="so far"):
        hosts.run("host1", ["sh", "-c", "echo so far; sleep 1000 & sleep 1000"], timeout=0.5)
    assert wait_for(lambda: hosts.processes("host1") == {})


@pytest.mark.parametrize(("rate", "bits"), [("100mbit", 100e6), ("300mbit", 300e6)])
def test_rate_of_a_link(make_hosts, rate, bits):
    hosts = make_hosts(2, rate)
    before = hosts.counters("host1"), hosts.counters("host2")
    listener = hosts.popen("host2", [sys.executable, PROGRAMS / "stream.py", "listen"])
    assert listener.stdout.readline() == "listening\n"
    nbytes = 16 << 20
    result = hosts.run("host1", [sys.executable, PROGRAMS / "stream.py", "host2", nbytes])
    assert result.returncode == 0, result.stderr
    assert listener.communicate(timeout=DEADLINE)[0] == f"{nbytes}\n"
    # A machine that has something else to do may be slower, but nothing may be faster. The
    # headers, 66 bytes for each 1448, are not counted in the figure.
    assert 0.5 * bits < float(result.stdout) < 0.97 * bits
    sent = hosts.counters("host1") - before[0]
    received = hosts.counters("host2") - before[1]
    assert nbytes < sent.sent < 1.15 * nbytes
    assert nbytes < received.received < 1.15 * nbytes
    assert max(sent.received, received.sent) < 0.1 * nbytes


def test_a_cut_is_silent_and_can_be_mended(make_hosts):
    hosts = make_hosts(2)
    folder = hosts.shared
    hosts.popen("host2", [sys.executable, PROGRAMS / "talk.py", "listen", folder])
    assert wait_for((folder / "listening").exists)
    hosts.popen("host1", [sys.executable, PROGRAMS / "talk.py", "host2", folder])
    (folder / "say.0").touch()
    assert wait_for((folder / "heard.0").exists)

    hosts.cut("host2")
    (folder / "say.1").touch()
    assert wait_for((folder / "said.1").exists)
    time.sleep(0.5)  # not a deadline: time for something to come that must not come
    assert not (folder / "heard.1").exists()
    assert not (folder / "error").exists()
    for host in hosts.names:
        assert hosts.run(host, ["cat", "/sys/class/net/eth0/carrier"]).stdout == "1\n"

    hosts.mend("host2")
    (folder / "say.2").touch()
    assert wait_for((folder / "heard.2").exists)
    assert not (folder / "error").exists()


def test_two_harnesses_at_once_and_the_machine_unchanged(make_hosts):
    links = namespaces.run("ip", "-oneline", "address")
    first, second = make_hosts(2), make_hosts(2)
    (first.shared / "mark").touch()
    assert first.run("host2", ["ls"]).stdout == "mark\n"
    assert second.run("host2", ["ls"]).stdout == ""
    first.cut("host2")
    assert second.run("host1", ["ssh", "host2", "hostname"]).stdout == "host2\n"
    assert namespaces.run("ip", "-oneline", "address") == links


HARNESS = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from hosts.rack import Hosts
with Hosts(2) as hosts:
    hosts.popen("host2", ["sleep", "{{nap}}"])
    while not hosts.processes("host2"):
        time.sleep(0.02)
    print(hosts.shared.parent, flush=True)
    {{body}}
"""


def started(body: str) -> tuple[subprocess.Popen[str], Path, str]:
    """A harness in a process of its own: the process, its folder and the argument of its sleep."""
    nap = str(10**6 + os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-c", HARNESS.format(nap=nap, body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip()), nap


def is_running(words: str) -> bool:
    return words in namespaces.run("ps", "-A", "-o", "args")


@pytest.mark.parametrize("ending", ["exception", "SIGINT", "SIGKILL"])
def test_nothing_is_left_however_it_ends(make_hosts, ending):
    make_hosts(1)  # skips where there can be none
    body = "raise ValueError" if ending == "exception" else "time.sleep(60)"
    process, folder, nap = started(body)
    assert folder.name.startswith(rack.PREFIX)
    if ending != "exception":
        process.send_signal(getattr(signal, ending))
    process.communicate(timeout=DEADLINE)
    assert wait_for(lambda: not is_running(f"sleep {nap}"))
    assert wait_for(lambda: not is_running(str(folder)))
    # Of a killed one the folder stays until the next one begins.
    assert folder.exists() == (ending == "SIGKILL")
    with Hosts(1):
        assert not folder.exists()


def test_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    which = namespaces.shutil.which
    monkeypatch.setattr(
        namespaces.shutil, "which", lambda tool, path: None if tool == "tc" else which("sh")
    )
    assert "needs tc: install iproute2" in namespaces.why_not()
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool, path: which("sh"))
    monkeypatch.setattr(namespaces, "NAMESPACES", ("--no-such-namespace",))
    assert "not permitted here: unshare" in namespaces.why_not()
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert "root" in namespaces.why_not()
