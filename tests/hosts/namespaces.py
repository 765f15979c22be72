"""Processes in namespaces of their own, and whether this machine permits them."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
TOOLS = ("ip", "tc", "unshare", "nsenter", "setsid", "mount", "ssh", "ssh-keygen", "/usr/sbin/sshd")
SEARCH_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
START_TIMEOUT = 30.0


def run(*command: object, timeout: float = START_TIMEOUT) -> str:
    """Runs a command of this machine and returns its output; raises with its error's text."""
    result = subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PATH": SEARCH_PATH, "LC_ALL": "C"},
    )
    if result.returncode != 0:
        words = " ".join(map(str, command))
        raise RuntimeError(f"{words}: exit code {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def why_not() -> str | None:
    """What this machine lacks to make hosts; None where it has everything."""
    if os.geteuid() != 0:
        return "making hosts needs root (network namespaces, mounts, sshd)"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=SEARCH_PATH) is None]
    if missing:
        return f"making hosts needs {', '.join(missing)}: install iproute2 and openssh-server"
    trial = (
        "ip link add switch0 type bridge && ip link add port0 type veth peer name eth0 && "
        "tc qdisc add dev port0 root tbf rate 1gbit burst 64kb latency 50ms && "
        "mount -t tmpfs tmpfs /mnt && mount -t sysfs sysfs /sys"
    )
    try:
        run("unshare", *NAMESPACES, "--fork", "--mount-proc", "sh", "-c", trial)
    except RuntimeError as error:
        return f"making hosts is not permitted here: {error}"
    return None


class Namespaces:
    """A process in namespaces of its own, which live as long as it does."""

    def __init__(self, command: Sequence[str], kinds: Sequence[str], log: Path) -> None:
        """Starts ``command``, which has to end with its standard input."""
        with open(log, "w") as stderr:
            self._outer = subprocess.Popen(
                ["unshare", *kinds, "--fork", "--kill-child", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the harness, which then ends this
                env={**os.environ, "PATH": SEARCH_PATH},
            )
        self._log = log
        self._child = 0

    @property
    def pid(self) -> int:
        """The process id, as this machine sees it."""
        until = time.monotonic() + START_TIMEOUT
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        while not self._child:
            found = children.read_text().split() if self._outer.poll() is None else []
            if found:
                self._child = int(found[0])
            elif self._outer.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"unshare did not start a process: {self._log.read_text()}")
        return self._child

    def send(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self._outer.stdin is not None
        self._outer.stdin.write(f"{line}\n".encode())
        self._outer.stdin.flush()

    def expect(self, word: str) -> None:
        """Waits until it prints ``word``."""
        assert self._outer.stdout is not None
        ready, _, _ = select.select([self._outer.stdout], [], [], START_TIMEOUT)
        line = self._outer.stdout.readline().decode().strip() if ready else "nothing"
        if line != word:
            raise RuntimeError(f"a host said {line!r}, not {word!r}: {self._log.read_text()}")

    def enter(self, kinds: Sequence[str], *command: str) -> list[str]:
        """The command that runs ``command`` in these namespaces."""
        return ["nsenter", "--target", str(self.pid), *kinds, "--", *command]

    def end(self) -> None:
        """Ends the process, and so all in its namespaces."""
        for stream in (self._outer.stdin, self._outer.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._outer.wait(timeout=START_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._outer.kill()  # and with it, by --kill-child, the process
            self._outer.wait()
