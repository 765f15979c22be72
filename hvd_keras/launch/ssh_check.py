"""Whether all hosts can be reached by ssh, asked before anything is started, all at once."""

from __future__ import annotations

import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.hosts import is_this_machine

_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 20.0
_AT_ONCE = 64
_MISSING = "hvdrun-missing "
_ANSWERED = "hvdrun-answered"

# What OpenSSH says, and what that means. The first that fits counts.
_CAUSES = (
    (r"Could not resolve hostname", "its name does not resolve"),
    (r"Connection refused", "the connection is refused: no sshd listens there"),
    (
        r"No route to host|Network is unreachable",
        "there is no route to it",
    ),
    (
        r"timed out|Timeout",
        f"no answer within {_CONNECT_SECONDS} s: a firewall, or it is down",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one in known_hosts: see ssh-keygen -R",
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "its host key is not known here: log in once by hand, or fill known_hosts with ssh-keyscan",
    ),
    (
        r"Identity file .* not accessible|no such identity",
        "the identity file cannot be read",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it accepts no key of yours: add one to its ~/.ssh/authorized_keys, or name it with -i",
    ),
    (
        r"Connection (closed|reset)|kex_exchange_identification",
        "it closed the connection before the login",
    ),
)


class SshOptions(NamedTuple):
    """How ssh is called.

    Attributes:
        port: the port, None for ssh's own choice.
        identity: the file with the key, None for ssh's own choice.
    """

    port: int | None = None
    identity: str | None = None

    def arguments(self) -> list[str]:
        """The arguments of ssh, for the MPI launcher as well.

        Raises:
            LaunchError: the launcher could not take them.
        """
        words = ["-p", str(self.port)] if self.port is not None else []
        if self.identity is not None:
            if re.search(r"\s", self.identity):
                raise LaunchError(f"-i {self.identity!r}: the path must not have spaces in it.")
            words += ["-i", os.path.abspath(os.path.expanduser(self.identity))]
        # Nobody is there to answer a question.
        return [*words, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]


def remote_hosts(hosts: Sequence[str]) -> list[str]:
    """Those that are not this machine."""
    return [host for host in hosts if not is_this_machine(host)]


def check_ssh(
    hosts: Sequence[str], options: SshOptions, programs: Sequence[str], env: Mapping[str, str]
) -> None:
    """Logs in to all ``hosts`` at once and looks there for ``programs``.

    Args:
        hosts: the hosts, none of them this machine.
        options: how ssh is called.
        programs: paths that have to be executable, or names that have to be on PATH.
        env: the environment of ssh.

    Raises:
        LaunchError: one line for each host that does not answer or lacks a program, with the cause.
    """
    if not hosts:
        return
    ssh = shutil.which("ssh", path=env.get("PATH", os.defpath))
    if ssh is None:
        raise LaunchError(
            f"starting ranks on {hosts[0]} needs ssh, which is not on PATH "
            "(Debian: apt-get install openssh-client)."
        )
    arguments = [ssh, *options.arguments()]

    def ask(host: str) -> str | None:
        return _ask(arguments, host, programs, env)

    with concurrent.futures.ThreadPoolExecutor(min(_AT_ONCE, len(hosts))) as pool:
        answers = list(pool.map(ask, hosts))
    port = f" port {options.port}" if options.port is not None else ""
    bad = [f"{host}{port}: {why}" for host, why in zip(hosts, answers, strict=True) if why]
    if bad:
        lines = "\n  ".join(bad)
        raise LaunchError(
            f"{len(bad)} of {len(hosts)} other hosts cannot run ranks; nothing was started.\n"
            f"  {lines}\nTry it by hand: {shlex.join([*arguments, hosts[0], 'true'])}"
        )


def _ask(
    ssh: Sequence[str], host: str, programs: Sequence[str], env: Mapping[str, str]
) -> str | None:
    """Why ``host`` cannot be used; None if it can."""
    # Everything in one word for /bin/sh, since the login shell may be another.
    tests = [
        f"command -v {name} >/dev/null 2>&1 || echo {_MISSING}{name}"
        for name in map(shlex.quote, programs)
    ]
    script = "; ".join([*tests, f"echo {_ANSWERED}"])
    try:
        child = subprocess.run(
            [*ssh, host, f"/bin/sh -c {shlex.quote(script)}"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS + _CONNECT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_ANSWER_SECONDS + _CONNECT_SECONDS:g} s"
    lines = child.stdout.splitlines()
    missing = [line[len(_MISSING) :] for line in lines if line.startswith(_MISSING)]
    if missing:
        return f"there is no {', no '.join(missing)}: install the same there, in the same place"
    if _ANSWERED in lines:
        return None
    return explain(child.returncode, child.stderr)


def explain(returncode: int, stderr: str) -> str:
    """The cause of a failed ssh, in words."""
    for pattern, why in _CAUSES:
        if re.search(pattern, stderr):
            return why
    last = [line for line in stderr.splitlines() if line.strip()][-1:]
    if returncode == 255:
        return f"ssh failed: {last[0].strip()}" if last else "ssh failed and did not say why"
    said = f": {last[0].strip()}" if last else ""
    return f"the command there ended with exit code {returncode}{said}"


def programs_to_find(daemon: str, launcher: str, command: Sequence[str]) -> list[str]:
    """What a remote host has to have for a job: Python, the process around a rank, the MPI daemon.

    Args:
        daemon: name of the program that the launcher starts there.
        launcher: path of the launcher here, in whose folder the daemon lies.
        command: what each rank runs.
    """
    beside = os.path.join(os.path.dirname(launcher), daemon)
    # Where the launcher is a link into an installation, its daemon need not be beside it.
    daemon_path = beside if os.path.exists(beside) else daemon
    program = command[0] if os.path.isabs(command[0]) else None
    found = [sys.executable, daemon_path if daemon else None, program]
    return list(dict.fromkeys(path for path in found if path))
