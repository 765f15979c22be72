"""Which ranks can share memory, as the workers of a cluster find out for themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from hvd_keras.launch import environment
from hvd_keras.launch.processes import running_system

__all__ = ["Host", "require_one_host", "this_host"]


class Host(NamedTuple):
    """Equal for processes that can share memory.

    Attributes:
        name: for messages.
        identity: of the running system, of the process numbers (a rank's death is noticed by its
            number) and of the folder that shared memory lies in; containers of one machine may
            differ in the last two.
    """

    name: str
    identity: str


def this_host() -> Host:
    """Where this process runs. HVD_HOST_ID, where it is set, takes the place of the identity."""
    name = os.uname().nodename
    given = environment.current_environment().get(environment.HOST_ID_VARIABLE, "").strip()
    if given:
        return Host(f"{name}, {environment.HOST_ID_VARIABLE}={given}", given)
    return Host(name, f"{running_system()}/{os.stat('/dev/shm').st_dev}")


def require_one_host(hosts: Sequence[Host], what: str, remedy: str) -> None:
    """Checks that all ranks can share memory.

    Args:
        hosts: those of the ranks.
        what: how the message calls them, for example "Spark tasks".
        remedy: the message's end.

    Raises:
        RuntimeError: they cannot.
    """
    names = {host.identity: host.name for host in hosts}
    if len(names) > 1:
        raise RuntimeError(
            f"the {what} run on {len(names)} hosts ({'; '.join(sorted(names.values()))}); a job "
            f"over several hosts needs MPI, which is not used from here yet. {remedy}"
        )
