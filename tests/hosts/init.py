"""Process 1 of a host: makes it a machine of its own, runs sshd, and ends with its standard input.

When it ends, the kernel kills all processes of the host and removes its namespaces, mounts and
links. Since it ends when nobody holds the other end of its standard input any more, a harness that
is killed leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

# A host does not see those of the machine, nor those of another host.
PRIVATE = {"/run": "0755", "/dev/shm": "1777", "/tmp": "1777"}
SSHD = "/usr/sbin/sshd"


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def is_below(path: str, folders: dict[str, str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def make_private(shared: list[str]) -> None:
    """Mounts empty folders over the private ones, but for the shared paths in them."""
    keep = Path("/mnt")
    mount("-t", "tmpfs", "tmpfs", str(keep))
    hidden = {path: keep / str(i) for i, path in enumerate(shared) if is_below(path, PRIVATE)}
    for path, place in hidden.items():
        place.mkdir()
        mount("--rbind", path, str(place))
    for folder, mode in PRIVATE.items():
        mount("-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", folder)
    for path, place in hidden.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("--move", str(place), path)
    subprocess.run(["umount", str(keep)], check=True)
    # Shows the network interfaces of this namespace; MPI libraries look for them here.
    mount("-t", "sysfs", "sysfs", "/sys")


def use_files(folder: Path) -> None:
    """Puts the files of ``folder`` in the place of the machine's, for this host only."""
    for name in ("hosts", "hostname", "shadow"):
        if Path("/etc", name).exists():
            mount("--bind", str(folder / name), f"/etc/{name}")
    mount("-t", "tmpfs", "tmpfs", "/etc/ssh")
    for file in (folder / "ssh").iterdir():
        shutil.copy(file, "/etc/ssh")  # with its mode: ssh refuses a key that others may read
    own = Path.home() / ".ssh"
    if own.is_dir():
        mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs", str(own))
    Path("/run/sshd").mkdir()


def wait_for_port(port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def reap(*_: object) -> None:
    """Orphans become children of process 1."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    config = json.loads(sys.stdin.readline())
    make_private(config["shared"])
    use_files(Path(config["folder"]))
    socket.sethostname(config["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # The harness may have got here under nohup, or from a thread that blocks signals.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    subprocess.Popen([SSHD, "-D", "-e"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for_port(config["ssh_port"])
    signal.signal(signal.SIGCHLD, reap)
    print("ready", flush=True)
    while sys.stdin.readline():
        pass


if __name__ == "__main__":
    main()
