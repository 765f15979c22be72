"""Parsing and checking of ``-H host:slots,...`` and of host files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from hvd_keras.launch.errors import LaunchError


class HostSlots(NamedTuple):
    """A host and the number of ranks that may run on it."""

    host: str
    slots: int


def parse_hosts(text: str) -> list[HostSlots]:
    """Returns the hosts of ``host:slots,host:slots``, in the given order.

    A host without ``:slots`` has one slot; an IPv6 address stands in brackets. A host that is
    named twice has the sum of its slots.

    Raises:
        LaunchError: the text is malformed.
    """
    slots_of: dict[str, int] = {}
    for entry in text.split(","):
        host, slots = _parse_entry(entry.strip(), text)
        slots_of[host] = slots_of.get(host, 0) + slots
    return [HostSlots(host, slots) for host, slots in slots_of.items()]


def read_hostfile(path: str) -> list[HostSlots]:
    """Returns the hosts of a file with lines ``host slots=N``; ``#`` begins a comment.

    Raises:
        LaunchError: the file cannot be read, or a line is malformed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"-hostfile {path}: {error}.") from error
    slots_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots_text = words[1].partition("slots=")[2] if len(words) == 2 else "1"
        slots = _slots(slots_text)
        if len(words) > 2 or slots is None:
            raise LaunchError(
                f"-hostfile {path}: line {number} is {line!r}; expected a host and slots=N, "
                "for example localhost slots=4."
            )
        slots_of[words[0]] = slots_of.get(words[0], 0) + slots
    if not slots_of:
        raise LaunchError(f"-hostfile {path}: it names no host.")
    return [HostSlots(host, slots) for host, slots in slots_of.items()]


def _parse_entry(entry: str, text: str) -> HostSlots:
    if entry.startswith("["):
        host, closed, rest = entry[1:].partition("]")
        well_formed = bool(closed) and (not rest or rest.startswith(":"))
        slots_text = rest[1:] if rest else "1"
    else:
        host, colon, slots_text = entry.partition(":")
        well_formed = True
        if not colon:
            slots_text = "1"
    slots = _slots(slots_text)
    if not (well_formed and host and slots is not None):
        raise LaunchError(
            f"-H expects host:slots[,host:slots...] with slots of 1 or more, "
            f"for example localhost:4, but {entry!r} in {text!r} is not of that form."
        )
    return HostSlots(host, slots)


def _slots(text: str) -> int | None:
    """A number of slots of 1 or more; None if the text is none."""
    is_number = text.isascii() and text.isdigit() and len(text) < 7
    return int(text) if is_number and int(text) > 0 else None


def is_local_host(host: str) -> bool:
    """Whether ``host`` certainly is this machine; no name server is asked."""
    own = os.uname().nodename
    names = {"localhost", "localhost.localdomain", "ip6-localhost", own, own.partition(".")[0]}
    return host.lower() in {name.lower() for name in names} or _is_own_address(host)


def _is_own_address(host: str) -> bool:
    import socket  # late: almost no job names its host by address

    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((host, 0))
            return host not in ("0.0.0.0", "::")
        except OSError:
            return False
    return False


def is_this_machine(host: str) -> bool:
    """Whether ``host`` is this machine, by its name, its address, or what its name resolves to."""
    if is_local_host(host):
        return True
    import socket  # late: almost no job names other hosts

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # an alias that only ssh knows, or a name that ssh will not resolve either
    return all(_is_own_address(str(address[0])) for *_, address in found)


def check_slots(hosts: Sequence[HostSlots], num_proc: int) -> None:
    """Checks that there are slots enough.

    Raises:
        LaunchError: there are fewer slots than ranks.
    """
    slots = sum(entry.slots for entry in hosts)
    if slots < num_proc:
        given = ",".join(f"{host}:{count}" for host, count in hosts)
        more = ",".join(
            f"{host}:{count + (num_proc - slots) * (at == len(hosts) - 1)}"
            for at, (host, count) in enumerate(hosts)
        )
        raise LaunchError(
            f"-np {num_proc} asks for {num_proc} ranks, but -H {given} has only {slots} "
            f"slot{'s' * (slots != 1)}: write -H {more}, leave -H out, or lower -np."
        )
