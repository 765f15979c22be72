"""The collectives, with Horovod's arguments."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat import forwarding
from hvd_keras.compat.errors import translated
from hvd_keras.compat.forwarding import forward
from hvd_keras.op_calls import Average, Max, Min, Product, Sum

from ..common.basics import *  # noqa: F403
from ..common.basics import __all__ as _basics_names
from ..common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from .compression import Compression

__all__ = [
    *_basics_names,
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
]

_PS = global_process_set
_C = Compression.none


@forward()
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = _C,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = _PS,
    ignore_name_scope: bool = False,
) -> Any:
    """``hvd_keras.allreduce``."""


@forward()
def grouped_allreduce(
    tensors: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = _C,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = _PS,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """``hvd_keras.grouped_allreduce``."""


@forward()
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = _C,
    op: Any = Average,
    name: str | None = None,
    process_set: Any = _PS,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``hvd_keras.reducescatter``."""


@forward()
def grouped_reducescatter(
    tensors: Any,
    device_dense: str = "",
    compression: Any = _C,
    op: Any = Average,
    process_set: Any = _PS,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``hvd_keras.grouped_reducescatter``."""


@forward()
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = _PS
) -> Any:
    """``hvd_keras.allgather``."""


@forward()
def grouped_allgather(
    tensors: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = _PS
) -> Any:
    """``hvd_keras.grouped_allgather``."""


@forward()
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = _PS,
) -> Any:
    """``hvd_keras.broadcast``."""


@forward()
def broadcast_(
    variables: Any, root_rank: int, name: str | None = None, process_set: Any = _PS
) -> Any:
    """``hvd_keras.broadcast_``: in place."""


@forward()
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = _PS,
) -> Any:
    """``hvd_keras.alltoall``."""


@forward()
def join() -> Any:
    """``hvd_keras.join``."""


@forward()
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """``hvd_keras.size_op``."""


@forward()
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """``hvd_keras.process_set_included_op``."""


@forward()
def local_size_op(name: str | None = None) -> Any:
    """``hvd_keras.local_size_op``."""


@forward()
def rank_op(name: str | None = None) -> Any:
    """``hvd_keras.rank_op``."""


@forward()
def local_rank_op(name: str | None = None) -> Any:
    """``hvd_keras.local_rank_op``."""


def handle_average_backwards_compatibility(op: Any, average: bool | None) -> Any:
    """Returns the reduction that ``op`` and the older argument ``average`` mean together."""
    from hvd_keras.reductions import resolve_op

    with translated():
        return resolve_op(op, average)


# Not public in Horovod, but scripts use them.


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: Any = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = _PS,
) -> Any:
    """``allreduce``, by default the sum."""
    return allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def _grouped_allreduce(
    tensors: Any,
    name: str | None = None,
    op: Any = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = _PS,
) -> Any:
    """``grouped_allreduce``, by default the sum."""
    return grouped_allreduce(
        tensors,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: Any = Sum,
    ignore_name_scope: bool = False,
    process_set: Any = _PS,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``reducescatter``, by default the sum."""
    return reducescatter(
        tensor,
        op=op,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: Any = Sum,
    process_set: Any = _PS,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``grouped_reducescatter``, by default the sum."""
    del name
    return grouped_reducescatter(
        tensors,
        op=op,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _normalize_name(name: str) -> str:
    """Returns ``name`` as a name for a graph node."""
    import re

    return re.sub("[^a-zA-Z0-9_]", "_", name)


def _check_has_gpu() -> bool:
    """Returns whether TensorFlow sees a GPU."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def __getattr__(name: str) -> Any:
    if name == "Adasum":
        return forwarding.find(name, forwarding.TENSORFLOW)
    raise forwarding.missing_attribute(__name__, name)
