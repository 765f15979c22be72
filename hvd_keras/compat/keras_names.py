"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` have alike."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat.forwarding import KERAS, forward
from hvd_keras.compression import Compression
from hvd_keras.op_calls import Average

__all__ = ["allgather", "allreduce", "broadcast", "load_model", "reducescatter"]


@forward(KERAS)
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """``hvd_keras.keras.allreduce``."""


@forward(KERAS)
def allgather(value: Any, name: str | None = None) -> Any:
    """``hvd_keras.keras.allgather``."""


@forward(KERAS)
def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """``hvd_keras.keras.broadcast``."""


@forward(["hvd_keras.keras"])
def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """``hvd_keras.keras.reducescatter``."""


@forward(["hvd_keras.keras.saving"], ignored=["legacy_opts"])
def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """``hvd_keras.load_model``. Keras 3 has no legacy optimizers to choose."""
