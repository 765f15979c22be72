"""A rank's seat in a job over several hosts: all that it takes to become a rank there."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hvd_keras.launch import environment
from hvd_keras.runner.mpi.agent import Agent
from hvd_keras.runner.mpi.identity import Identity, Rendezvous
from hvd_keras.runner.mpi.launcher import HostAgent, Launcher
from hvd_keras.runner.placement import Host

__all__ = ["Meeting", "Member", "Seat", "rank_order"]

_END_SECONDS = 5.0


class Meeting:
    """What all members of a job know from whoever started it.

    Attributes:
        name: nobody else can guess it.
        secret: what an agent asks for.
        seconds: how long the start may take.
    """

    def __init__(self, seconds: float) -> None:
        self.name = secrets.token_hex(16)
        self.secret = secrets.token_bytes(32)
        self.seconds = seconds

    def __repr__(self) -> str:  # the secret must not get into a log
        return f"Meeting({self.seconds:g})"


class Member(NamedTuple):
    """What a member of a job tells the others.

    Attributes:
        host: where it is.
        address: of that host, as the others can reach it.
        port: where its agent listens.
    """

    host: Host
    address: str
    port: int


class Seat:
    """Becomes a rank of an MPI job. ``take`` is called by all members at about the same time.

    Args:
        meeting: the same for all.
        address: of this host, as the others can reach it.
        host: this host.
    """

    def __init__(self, meeting: Meeting, address: str, host: Host) -> None:
        self._meeting = meeting
        self._agent: Agent | None = Agent(meeting.secret)
        self._launcher: Launcher | None = None
        self._identity: Identity | None = None
        self.member = Member(host, address, self._agent.port)

    def take(
        self,
        members: Sequence[Member],
        rank: int,
        env: Mapping[str, str],
        python: str | None = None,
    ) -> Identity:
        """Returns the identity that makes a process rank ``rank`` of ``len(members)``.

        Args:
            members: all, in the order of ``rank_order``.
            rank: of this one.
            env: the environment of the ranks.
            python: their interpreter; None for this one.

        Raises:
            LaunchError: there is no MPI, or it could not start the job.
            TimeoutError: it has not started this rank in time.
        """
        first = [member.host.identity for member in members].index(members[rank].host.identity)
        if rank != first:
            self._close_agent()
        with Rendezvous(self._meeting.name, rank) as rendezvous:
            if rank == 0:
                self._launcher = Launcher(
                    self._meeting.name,
                    _host_agents(members),
                    self._meeting.secret,
                    self._meeting.seconds,
                    python or sys.executable,
                    env,
                )
            self._identity = rendezvous.wait(self._meeting.seconds, self._check)
        if self._identity is None:
            raise TimeoutError(self._too_late(members, rank))
        self._identity.variables[environment.EXPECTED_SIZE_VARIABLE] = str(len(members))
        return self._identity

    def release_fds(self) -> None:
        """Closes the identity's descriptors here, once the rank's own process has them."""
        if self._identity is not None:
            self._identity.release_fds()

    def leave(self) -> None:
        """Leaves after a good end of all ranks; MPI's processes end by themselves."""
        if self._identity is not None:
            self._identity.done()
        if self._launcher is not None:
            self._launcher.wait(_END_SECONDS)
        if self._agent is not None:
            self._agent.wait(_END_SECONDS)
        self.close()

    def close(self) -> None:
        """Ends what MPI has started by way of this member, whether or not ranks still need it."""
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        self._close_agent()

    def _close_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def _check(self) -> None:
        if self._launcher is not None:
            self._launcher.require_running()

    def _too_late(self, members: Sequence[Member], rank: int) -> str:
        names = ", ".join(dict.fromkeys(member.host.name for member in members))
        said = self._launcher.said() if self._launcher is not None else ""
        return (
            f"after {self._meeting.seconds:g} s MPI had not started rank {rank} of "
            f"{len(members)} on the hosts {names}: they have to reach one another over the "
            "network; look at the firewall, or allow more time (the start timeout)" + said
        )


def rank_order(hosts: Sequence[Host], nodes: Sequence[str] = ()) -> list[int]:
    """Which member is rank 0, 1...: those of a host are neighbours, hosts by their first member.

    Args:
        hosts: of the members.
        nodes: a finer division of the hosts, whose members are neighbours as well.
    """
    names = nodes or [""] * len(hosts)
    host_numbers = _first_seen(host.identity for host in hosts)
    node_numbers = _first_seen(names)
    return sorted(
        range(len(hosts)),
        key=lambda at: (host_numbers[hosts[at].identity], node_numbers[names[at]], at),
    )


def _first_seen(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _host_agents(members: Sequence[Member]) -> list[HostAgent]:
    """The hosts in the order of the ranks; the agent of each is with its first rank."""
    identities = [member.host.identity for member in members]
    return [
        HostAgent(identities.count(identity), members[identities.index(identity)][1:])
        for identity in dict.fromkeys(identities)
    ]
