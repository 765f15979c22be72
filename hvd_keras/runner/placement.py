"""Which ranks can share memory, as the workers of a cluster find out for themselves."""

from __future__ import annotations

import os
from typing import NamedTuple

from hvd_keras.launch import environment
from hvd_keras.launch.processes import running_system

__all__ = ["Host", "this_host"]


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
