"""Calls of the compiled operations: one function, one operation (or one per type of tensor).

Names are used as they are; collectives.py and gradients.py make them, and check the arguments.
"""

from __future__ import annotations

import contextlib
import enum
import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import _library, op_gradients
from hvd_keras.graph_order import (
    call_attributes,
    check_place,
    is_compiled,
    outside_of_clusters,
    run_independently,
)

__all__ = [
    "TYPES",
    "Average",
    "Max",
    "Min",
    "Product",
    "Adasum",
    "ReduceOp",
    "Sum",
    "allgather_tensors",
    "allreduce_tensors",
    "alltoall_tensor",
    "barrier",
    "broadcast_tensors",
    "by_type",
    "device_scope",
    "fence",
    "join",
    "reducescatter_tensors",
    "to_tensor",
]

op_gradients.register()


class ReduceOp(enum.Enum):
    """How the ranks' tensors are combined: element by element, but for Adasum."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"

    def __repr__(self) -> str:
        return f"hvd.{self.name.capitalize()}"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM

TYPES = frozenset(
    {
        tf.bool,
        tf.uint8,
        tf.int8,
        tf.uint16,
        tf.int16,
        tf.uint32,
        tf.int32,
        tf.uint64,
        tf.int64,
        tf.float16,
        tf.bfloat16,
        tf.float32,
        tf.float64,
    }
)


@outside_of_clusters
def allreduce_tensors(
    tensors: Sequence[tf.Tensor],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    name: str,
    process_set: int = 0,
    node: str | None = None,
) -> list[tf.Tensor]:
    """One allreduce operation, of tensors of one type; ``name`` is used as it is."""
    check_place(name)
    return run_independently(
        _library.ops.hvd_allreduce(
            list(tensors),
            reduce_op=op.value,
            prescale_bits=_bits(prescale),
            postscale_bits=_bits(postscale),
            **call_attributes(name, process_set, node),
        )
    )


def fence(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Keeps XLA from doing anything with the tensors before it has all of them.

    To use little memory, XLA would update the weights of one bucket before it computes the
    gradients of the next, and thus let the backward pass wait for each bucket in turn. Without XLA
    it does nothing: there a bucket's weights may be updated while the next one travels.
    """
    return _library.ops.hvd_fence(tensors) if len(tensors) > 1 and is_compiled() else tensors


@outside_of_clusters
def reducescatter_tensors(
    tensors: Sequence[tf.Tensor],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    name: str,
    process_set: int = 0,
) -> list[tf.Tensor]:
    """One reducescatter operation, of tensors of one type; ``name`` is used as it is."""
    check_place(name)
    return run_independently(
        _library.ops.hvd_reducescatter(
            list(tensors),
            reduce_op=op.value,
            prescale_bits=_bits(prescale),
            postscale_bits=_bits(postscale),
            **call_attributes(name, process_set),
        )
    )


@outside_of_clusters
def alltoall_tensor(
    tensor: tf.Tensor, splits: tf.Tensor, name: str, process_set: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """One alltoall operation; returns what came, and how many rows from each rank (int64)."""
    check_place(name)
    output, received = _library.ops.hvd_alltoall(
        tensor, splits, **call_attributes(name, process_set)
    )
    run_independently([output])
    return output, received


@outside_of_clusters
def join(name: str, process_set: int = 0) -> tf.Tensor:
    """One join operation; it keeps its place among a function's side effects."""
    check_place(name)
    return _library.ops.hvd_join(**call_attributes(name, process_set))


@outside_of_clusters
def broadcast_tensors(
    tensors: Sequence[tf.Tensor], root_rank: int, name: str, process_set: int = 0
) -> list[tf.Tensor]:
    """One broadcast operation, of tensors of one type; ``name`` is used as it is."""
    if isinstance(root_rank, bool) or int(root_rank) != root_rank:
        raise TypeError(f"root_rank={root_rank!r} is not a rank; expected an integer")
    check_place(name)
    return run_independently(
        _library.ops.hvd_broadcast(
            list(tensors),
            root_rank=int(root_rank),
            **call_attributes(name, process_set),
        )
    )


@outside_of_clusters
def allgather_tensors(
    tensors: Sequence[tf.Tensor], name: str, process_set: int = 0
) -> list[tf.Tensor]:
    """One allgather operation, of tensors of one type; ``name`` is used as it is."""
    check_place(name)
    return run_independently(
        _library.ops.hvd_allgather(list(tensors), **call_attributes(name, process_set))
    )


def by_type(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Returns the positions of the tensors of each type, in the order of first appearance."""
    groups: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(i)
    return list(groups.values())


def to_tensor(value: Any, caller: str) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in TYPES:
        remedy = ""
        if tensor.dtype.is_complex:
            remedy = "; send tf.math.real and tf.math.imag of it"
        elif tensor.dtype == tf.string:
            remedy = "; use hvd.allgather_object or hvd.broadcast_object for text"
        raise TypeError(
            f"{caller} does not take tensors of type {tensor.dtype.name}; expected one of "
            f"{', '.join(sorted(dtype.name for dtype in TYPES))}{remedy}"
        )
    return tensor


def _bits(factor: float) -> int:
    # TensorFlow's attributes have no float64, so the factor travels as the integer of its bits.
    return struct.unpack("<q", struct.pack("<d", float(factor)))[0]


def device_scope(device: str) -> contextlib.AbstractContextManager:
    return tf.device(device) if device else contextlib.nullcontext()


@outside_of_clusters
def barrier(name: str, process_set: int = 0, timeout: float = 0.0) -> tf.Operation | None:
    """One barrier operation; it keeps its place among a function's side effects."""
    check_place(name)
    return _library.ops.hvd_barrier(timeout_seconds=timeout, **call_attributes(name, process_set))
