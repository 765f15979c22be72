"""Giving every rank the variables and objects of one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras.compat.forwarding import forward

from .mpi_ops import global_process_set

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_PS = global_process_set


@forward(ignored=["inplace"])
def broadcast_variables(
    variables: Any, root_rank: int, process_set: Any = _PS, inplace: bool = False
) -> Any:
    """``hvd_keras.broadcast_variables``."""


@forward()
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = _PS,
) -> Any:
    """``hvd_keras.broadcast_object``."""


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = _PS
) -> Callable[[Any], Any]:
    """Returns a function of one object: ``broadcast_object`` with these arguments."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


@forward()
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = _PS
) -> Any:
    """``hvd_keras.allgather_object``."""


@forward()
def broadcast_global_variables(root_rank: int) -> Any:
    """``hvd_keras.tensorflow.hooks.broadcast_global_variables``."""
