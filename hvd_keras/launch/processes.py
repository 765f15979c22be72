"""Process plumbing of the supervisor: death signals, descendants, exit codes (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, so that none can get away."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def prepare_rank(supervisor_pid: int) -> None:
    """Runs in a new rank before exec: a process group of its own, and death with its parent."""
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor_pid:  # it died before prctl
        os._exit(1)


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent has died."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def signal_group(pgid: int, signum: int) -> None:
    """Sends a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def signal_process(pid: int, signum: int) -> None:
    """Sends a signal to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def is_alive(pid: int) -> bool:
    """Whether the process is there, and more than a zombie."""
    return _living_parent(str(pid)) is not None


def descendants(root: int) -> list[int]:
    """The living processes below ``root``, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent = _living_parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _living_parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses included.
    state, parent = text[text.rindex(b")") + 2 :].split(None, 2)[:2]
    return None if state in (b"Z", b"X") else int(parent)


def process_name(pid: int) -> str:
    """The command line of a process, shortened; "?" if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"
    return (words[:57] + "...") if len(words) > 60 else (words or "?")


def signal_name(signum: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def shell_exit_code(returncode: int) -> int:
    """A shell's exit code for a return code as ``subprocess`` has it (negative for signals)."""
    return returncode if returncode >= 0 else 128 - returncode


def running_system() -> str:
    """The running system and its view of process numbers: equal where processes see one another."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
