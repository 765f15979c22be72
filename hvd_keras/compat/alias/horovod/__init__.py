"""Horovod's names on hvd_keras; see hvd_keras.compat."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat import HOROVOD_VERSION, forwarding, which

__version__ = HOROVOD_VERSION

which.say_which_is_used()


def __getattr__(name: str) -> Any:
    if name == "run":
        from .runner import run

        return run
    raise forwarding.missing_attribute(__name__, name)
