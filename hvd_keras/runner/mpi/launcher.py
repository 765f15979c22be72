"""mpirun or mpiexec on the first host, which reaches the others through their agents."""

from __future__ import annotations

import collections
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hvd_keras.launch import environment
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.hosts import HostSlots
from hvd_keras.launch.mpi_find import find_mpi
from hvd_keras.launch.mpi_makes import MpiPlan
from hvd_keras.launch.report import describe
from hvd_keras.runner.channel import Address
from hvd_keras.runner.mpi.agent import GRACE_SECONDS, run_kept

__all__ = ["HostAgent", "Launcher"]

_FOLDER = Path(__file__).parent
_TAIL_LINES = 20


class HostAgent(NamedTuple):
    """A host of the job: how many ranks are there, and where its agent listens."""

    ranks: int
    address: Address


class Launcher:
    """A running mpirun or mpiexec, which starts a stand-in for each rank.

    Args:
        meeting: the name that ranks and stand-ins find each other by.
        hosts: in the order of the ranks.
        secret: what the agents ask for.
        seconds: how long a stand-in waits for its rank.
        python: the interpreter of the ranks, whose MPI is used.
        env: the environment of the ranks.

    Raises:
        LaunchError: there is no MPI, or no launcher that fits it.
    """

    def __init__(
        self,
        meeting: str,
        hosts: Sequence[HostAgent],
        secret: bytes,
        seconds: float,
        python: str,
        env: Mapping[str, str],
    ) -> None:
        env = environment.outside_of_jobs(env)
        found = find_mpi([python], env)
        self._name = found.mpi.name
        self._shell = _remote_shell_program()
        # Names that no name server knows: all hosts are reached through their agents, this one too.
        names = [f"hvd-host-{number}" for number in range(len(hosts))]
        plan = MpiPlan(
            launcher=found.path,
            num_proc=sum(host.ranks for host in hosts),
            hosts=[HostSlots(name, host.ranks) for name, host in zip(names, hosts, strict=True)],
            command=_script("stand_in.py", meeting, f"{seconds:g}"),
            exported=("PATH",),  # Intel MPI needs something
            mpi_args=found.mpi.attached,
            own_address=hosts[0].address[0],
            is_root=os.geteuid() == 0,
        )
        agents = {name: host.address for name, host in zip(names, hosts, strict=True)}
        env.update(found.mpi.variables(plan))
        env.update(found.mpi.shell_variables(f"/proc/{os.getpid()}/fd/{self._shell}"))
        env.update(environment.agents_variables(agents, secret))
        read, write = os.pipe()
        try:
            self._job = run_kept(found.mpi.arguments(plan), write, env)
        finally:
            os.close(write)
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._code: int | None = None
        self._waiter = threading.Thread(target=self._wait, args=(read,), daemon=True)
        self._waiter.start()

    def require_running(self) -> None:
        """Checks that it has not ended.

        Raises:
            LaunchError: it has, and what it said.
        """
        if self._code is not None:
            raise LaunchError(
                f"{self._name} ended with {describe(self._code)} before all ranks had started"
                f"{self.said()}"
            )

    def said(self) -> str:
        """Its last lines, to be appended to a message."""
        text = "\n".join(self._tail)
        return f". It said:\n{text}" if text else " and said nothing"

    def close(self) -> None:
        """Ends it, and with it all that it has started on all hosts."""
        self._job.send_signal(signal.SIGTERM)
        self.wait(2 * GRACE_SECONDS)

    def wait(self, seconds: float) -> None:
        """Waits for its end, which comes by itself when all ranks are done."""
        self._waiter.join(seconds)

    def _wait(self, output: int) -> None:
        reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        reader.start()
        try:
            code = self._job.wait().exit_code
        except LaunchError as error:
            self._tail.append(str(error))
            code = error.exit_code
        reader.join()
        self._code = code
        os.close(self._shell)

    def _read(self, output: int) -> None:
        with open(output, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.strip() and not line.startswith("hvdrun: "):  # its supervisor's
                    self._tail.append(line.rstrip())


def _script(name: str, *arguments: str) -> list[str]:
    # -I -S: neither the user's directory nor site hooks may put modules in the way.
    return [sys.executable, "-I", "-S", str(_FOLDER / name), *arguments]


def _remote_shell_program() -> int:
    """Makes a program of the remote shell, since launchers ask for one path.

    It is no file, so that no disk has to allow it, and nothing is left of it.
    """
    fd = os.memfd_create("hvd-remote-shell", os.MFD_CLOEXEC)
    text = f'#!/bin/sh\nexec {shlex.join(_script("remote_shell.py"))} "$@"\n'
    os.write(fd, text.encode())
    return fd
