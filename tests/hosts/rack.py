"""Makes hosts, runs programs on them, and cuts their links."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hosts.namespaces import NAMESPACES, SEARCH_PATH, Namespaces, run

ROOT = Path(__file__).parents[2]
PREFIX = "hvd-hosts-"
# Reserved for tests of networks, so that it is nobody's real one (RFC 2544).
ADDRESS = "198.18.0.{}"

SSHD_CONFIG = """\
Port {port}
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
UseDNS no
PidFile none
MaxStartups 100
MaxSessions 100
"""

SSH_CONFIG = """\
Host *
    IdentityFile /etc/ssh/user_key
    IdentitiesOnly yes
    GlobalKnownHostsFile /etc/ssh/known_hosts
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
"""


def sweep() -> None:
    """Removes the folders of harnesses that were killed; of them nothing else can be left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name[len(PREFIX) :].split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a host's link has carried, in bytes.

    With headers, but where the kernel hands over several segments as one those of the first only;
    there can be up to 5 % more on the wire.
    """

    sent: int
    received: int

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.sent - before.sent, self.received - before.received)


class Hosts:
    """``count`` hosts on one switch, named host1, host2, ...; a context manager.

    Args:
        count: how many.
        rate: what each link carries in either direction, as tc writes it; None for no limit.
        ssh_port: where sshd listens.

    Attributes:
        names: the hosts' names.
        shared: a folder that all hosts see, and the machine. Else they share the disk but for
            /run, /dev/shm and /tmp, of which they see the source tree and Python only.

    The machine's own network is not touched: the switch has a namespace, too. None of them has a
    name on the machine, so that two of these do not get into each other's way.
    """

    def __init__(self, count: int, rate: str | None = "1gbit", ssh_port: int = 22) -> None:
        self.names = [f"host{i + 1}" for i in range(count)]
        self._rate = rate
        self._ssh_port = ssh_port
        self._hosts: dict[str, Namespaces] = {}
        self._switch: Namespaces | None = None
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Hosts:
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.shared = self._folder / "shared"
        self.shared.mkdir()
        try:
            self._write_files()
            self._make_switch()
            for name in self.names:
                self._make_host(name)
            for index, name in enumerate(self.names):
                self._connect(index, name)
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clean()

    def address(self, host: str) -> str:
        """The host's address."""
        return ADDRESS.format(self.names.index(host) + 1)

    def popen(
        self,
        host: str,
        command: Sequence[object],
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a program on a host, in a session of its own.

        Args:
            host: the host's name.
            command: the program and its arguments.
            env: its environment, this process's by default.
            cwd: its folder, :attr:`shared` by default.
        """
        inside = ["setsid", "--wait", "sh", "-c", 'cd "$0" && exec "$@"', str(cwd or self.shared)]
        process = subprocess.Popen(
            self._hosts[host].enter(NAMESPACES, *inside, *map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={"PATH": SEARCH_PATH, **(os.environ if env is None else env)},
        )
        self._started.append(process)
        return process

    def run(
        self, host: str, command: Sequence[object], timeout: float = 60.0, **how: object
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on a host to its end; for ``how`` see :meth:`popen`.

        Raises:
            subprocess.TimeoutExpired: it took longer than ``timeout`` seconds and was killed, with
                all of its session. Holds what it had written.
        """
        process = self.popen(host, command, **how)  # type: ignore[arg-type]
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            out, err = self.kill(process)
            wrote = f"\n... which was killed, and wrote:\n{out[-4000:]}\n{err[-4000:]}"
            words = [*map(str, command), wrote]
            raise subprocess.TimeoutExpired(words, timeout, out, err) from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def kill(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """Kills a program that :meth:`popen` started, and its session; returns its output."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                os.killpg(int(pid), signal.SIGKILL)
        process.kill()
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # someone else holds its pipes
            return "", ""

    def cut(self, host: str) -> None:
        """Cuts the host's link in silence: what is sent is lost, and nobody is told."""
        # The port stays up and just has no way on, so that the host sees its carrier as before.
        self._at_switch("ip", "link", "set", self._port(host), "nomaster")

    def mend(self, host: str) -> None:
        """Undoes :meth:`cut`."""
        self._at_switch("ip", "link", "set", self._port(host), "master", "switch0")

    def counters(self, host: str) -> Traffic:
        """What the host's link has carried until now."""
        lines = Path(f"/proc/{self._hosts[host].pid}/net/dev").read_text().splitlines()
        for line in lines:
            name, _, figures = line.partition(":")
            if name.strip() == "eth0":
                fields = figures.split()
                return Traffic(sent=int(fields[8]), received=int(fields[0]))
        raise RuntimeError(f"{host} has no eth0: {lines}")

    def processes(self, host: str, like: str = "") -> dict[int, str]:
        """What runs on a host but for its process 1 and its sshd: command lines by process id.

        Args:
            host: the host's name.
            like: a pattern; only command lines in which it occurs.
        """
        own = os.readlink(f"/proc/{self._hosts[host].pid}/ns/pid")
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._hosts[host].pid:
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    line = b" ".join(words).decode(errors="replace")
                    listens = line.startswith("sshd: ") and "[listener]" in line
                    wanted = line and not listens and re.search(like, line)
                    if os.readlink(entry / "ns/pid") == own and wanted:
                        found[int(entry.name)] = line
        return found

    def left_over(self, host: str, patience: float = 10.0, like: str = "") -> dict[int, str]:
        """What still runs on a host on which nothing (like this) should, after as much patience."""
        until = time.monotonic() + patience
        while (found := self.processes(host, like)) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def _port(self, host: str) -> str:
        return f"port{self.names.index(host)}"

    def _at_switch(self, *command: str) -> None:
        assert self._switch is not None
        run(*self._switch.enter(["--net"], *command))

    def _write_files(self) -> None:
        """What differs from the machine's /etc, and a key for ssh that lives as long as this."""
        ssh = self._folder / "ssh"
        ssh.mkdir()
        for key in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh / key)
        public = (ssh / "host_key.pub").read_text()
        (ssh / "known_hosts").write_text(f"* {public}")
        (ssh / "sshd_config").write_text(SSHD_CONFIG.format(port=self._ssh_port))
        (ssh / "ssh_config").write_text(SSH_CONFIG)
        lines = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in self.names)]
        for name in self.names:
            folder = self._folder / name
            folder.mkdir()
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            (folder / "hostname").write_text(f"{name}\n")
            # sshd lets nobody in whose account the machine has locked.
            (folder / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
            (folder / "ssh").symlink_to(ssh)

    def _make_switch(self) -> None:
        self._switch = Namespaces(["cat"], ["--net", "--pid"], self._folder / "switch.log")
        self._wait_for_namespace(self._switch)
        self._at_switch("ip", "link", "add", "switch0", "type", "bridge")
        self._at_switch("ip", "link", "set", "switch0", "up", "addrgenmode", "none")

    @staticmethod
    def _wait_for_namespace(made: Namespaces) -> None:
        """unshare makes the namespaces before it makes the child, so that the child is in them."""
        assert os.readlink(f"/proc/{made.pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def _make_host(self, name: str) -> None:
        init = [sys.executable, "-I", str(Path(__file__).with_name("init.py"))]
        log = self._folder / f"{name}.log"
        host = Namespaces(init, [*NAMESPACES, "--mount-proc"], log)
        self._hosts[name] = host
        config = {
            "name": name,
            "folder": str(self._folder / name),
            "ssh_port": self._ssh_port,
            "shared": sorted({str(self._folder), str(ROOT), sys.prefix, sys.base_prefix}),
        }
        host.send(json.dumps(config))
        host.expect("ready")

    def _connect(self, index: int, name: str) -> None:
        host, port = self._hosts[name], self._port(name)
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
        self._at_switch("ip", "link", "add", port, *peer)
        self._at_switch("ip", "link", "set", port, "master", "switch0", "up", "addrgenmode", "none")

        def at_host(*command: str) -> None:
            run(*host.enter(["--net"], *command))

        at_host("ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        at_host("ip", "link", "set", "eth0", "up", "addrgenmode", "none")
        if self._rate is not None:
            # A short burst, so that small messages cannot go faster than the wire; and what the
            # kernel sends as one piece fits into it, for to cut it up would cost the cores dearly.
            limit = ["root", "tbf", "rate", self._rate, "burst", "64kb", "latency", "20ms"]
            pieces = ["gso_max_size", "32768"]
            at_host("ip", "link", "set", "eth0", *pieces)
            at_host("tc", "qdisc", "add", "dev", "eth0", *limit)
            self._at_switch("ip", "link", "set", port, *pieces)
            self._at_switch("tc", "qdisc", "add", "dev", port, *limit)

    def _clean(self) -> None:
        for process in self._started:
            if process.poll() is None:
                self.kill(process)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for namespaces in [*self._hosts.values(), self._switch]:
            if namespaces is not None:
                namespaces.end()
        self._hosts.clear()
        self._switch = None
        shutil.rmtree(self._folder, ignore_errors=True)
