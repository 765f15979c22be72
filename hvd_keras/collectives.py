"""The collectives: each is called on every rank, with tensors that fit together.

They work in eager code, in ``tf.function``, in ``tf.compat.v1`` graphs, and have gradients
(see op_gradients.py for the convention). Where the ranks' tensors do not fit together, every rank
gets ``tf.errors.InvalidArgumentError``, which says what each of them sent; where a rank has died,
the others get ``tf.errors.AbortedError``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import op_calls, world
from hvd_keras.compression import Compression
from hvd_keras.naming import collective_name
from hvd_keras.op_calls import (
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather_tensors,
    allreduce_slices,
    allreduce_tensors,
    broadcast_tensors,
    by_type,
    device_scope,
    to_tensor,
)

__all__ = [
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "grouped_allreduce",
]

# Functions that a user calls carry do_not_convert: AutoGraph, which rewrites the Python code that a
# tf.function calls, has nothing to do in them.


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    *,
    ignore_name_scope: bool = False,
) -> tf.Tensor | tf.IndexedSlices:
    """Combines the ranks' tensors; every rank gets the same result, bit for bit.

    Args:
        tensor: anything that converts to a tensor of a type in ``TYPES`` (bool with Min, Max and
            Product only), of the same shape and type on every rank; or ``tf.IndexedSlices``, whose
            slices of all ranks are joined (Sum and Average only; their number may differ).
        average: deprecated: True means ``op=Average``, False ``op=Sum``.
        device_dense: device of the operation; '' is where TensorFlow puts it.
        device_sparse: the same for ``tf.IndexedSlices``.
        compression: what to send floats as, see ``Compression``.
        op: Average (the default), Sum, Min, Max or Product. Average divides once, after summing;
            of integers it truncates toward zero.
        prescale_factor: multiplies the tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on all ranks; see naming.py.
        ignore_name_scope: in graphs, use ``name`` without the name scopes around it.

    Returns:
        A tensor (or ``tf.IndexedSlices``) of the type and shape of ``tensor``.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError, ValueError: an argument is wrong.
    """
    world.require_initialized("hvd.allreduce()")
    op = resolve_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        full_name = collective_name("allreduce", name, ignore_name_scope=ignore_name_scope)
        with device_scope(device_sparse):
            scale = float(prescale_factor) * float(postscale_factor)
            (result,) = allreduce_slices([tensor], op, compression, scale, full_name)
            return result
    (result,) = grouped_allreduce(
        [tensor],
        device_dense=device_dense,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name or "allreduce",
        ignore_name_scope=ignore_name_scope or not name,
    )
    return result


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Like ``allreduce`` of each of ``tensors``, but all of one type travel together.

    Dense tensors and ``tf.IndexedSlices`` may be mixed. Arguments and errors are those of
    ``allreduce``; the number, order, types and shapes must be the same on every rank.

    Returns:
        A list in the order of ``tensors``.
    """
    world.require_initialized("hvd.grouped_allreduce()")
    op = resolve_op(op, average)
    full_name = collective_name("grouped_allreduce", name, ignore_name_scope=ignore_name_scope)
    results: list[Any] = list(tensors)
    sparse = [i for i, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in set(sparse)]
    with device_scope(device_dense):
        reduced = _allreduce_dense(
            [results[i] for i in dense],
            op,
            compression,
            prescale_factor,
            postscale_factor,
            full_name,
        )
    with device_scope(device_sparse):
        scale = float(prescale_factor) * float(postscale_factor)
        gathered = allreduce_slices(
            [results[i] for i in sparse], op, compression, scale, f"{full_name}.sparse"
        )
    for i, result in zip([*dense, *sparse], [*reduced, *gathered], strict=True):
        results[i] = result
    return results


@tf.autograph.experimental.do_not_convert
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False) -> tf.Tensor:
    """Joins the ranks' tensors along the first dimension, in the order of the ranks.

    Args:
        tensor: as for ``allreduce``, but the first dimension may differ between ranks (0 is
            allowed). A scalar counts as a vector of one element, so that the result has one
            element per rank.
        name, ignore_name_scope: as for ``allreduce``.

    Returns:
        A tensor whose first dimension is the sum of the ranks' first dimensions.

    Raises:
        NotInitializedError, TypeError, ValueError: as for ``allreduce``.
    """
    world.require_initialized("hvd.allgather()")
    value = to_tensor(tensor, "hvd.allgather()")
    if value.shape.rank == 0:
        value = tf.reshape(value, [1])
    full_name = collective_name("allgather", name, ignore_name_scope=ignore_name_scope)
    (result,) = allgather_tensors([value], full_name)
    return result


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False
) -> tf.Tensor:
    """Returns, on every rank, the tensor of ``root_rank``.

    Args:
        tensor: as for ``allreduce``, but no ``tf.IndexedSlices``.
        root_rank: the rank that sends, the same on all ranks.
        name, ignore_name_scope: as for ``allreduce``.

    Returns:
        A tensor of the type and shape of ``tensor``.

    Raises:
        NotInitializedError, TypeError, ValueError: as for ``allreduce``.
    """
    world.require_initialized("hvd.broadcast()")
    value = to_tensor(tensor, "hvd.broadcast()")
    full_name = collective_name("broadcast", name, ignore_name_scope=ignore_name_scope)
    (result,) = broadcast_tensors([value], root_rank, full_name)
    return result


@tf.autograph.experimental.do_not_convert
def barrier(name: str | None = None) -> tf.Operation | None:
    """Waits until every rank has come to it.

    In eager code it returns when all are there; in a ``tf.function`` it runs in the order of the
    function's other side effects; in a ``tf.compat.v1`` graph it returns the operation to run.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    world.require_initialized("hvd.barrier()")
    return op_calls.barrier(collective_name("barrier", name))


def resolve_op(op: ReduceOp | None, average: bool | None = None) -> ReduceOp:
    """Returns the reduction that ``op`` and the older argument ``average`` mean together.

    Raises:
        ValueError: both are given.
        TypeError: ``op`` is not one of the reductions.
    """
    if average is not None:
        if op is not None:
            raise ValueError(
                f"Both op={op!r} and average={average!r} were given; leave out average, which op "
                "replaces"
            )
        warnings.warn(
            "average= is deprecated; use op=hvd.Average or op=hvd.Sum",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, ReduceOp):
        raise TypeError(
            f"op={op!r} is not a reduction; expected one of "
            f"{', '.join(repr(member) for member in ReduceOp)}"
        )
    return op


def _allreduce_dense(
    tensors: Sequence[Any],
    op: ReduceOp,
    compression: Any,
    prescale: float,
    postscale: float,
    name: str,
) -> list[tf.Tensor]:
    values = [to_tensor(tensor, "hvd.allreduce()") for tensor in tensors]
    sent = [compression.compress(value) for value in values]
    results: list[Any] = [None] * len(values)
    for number, members in enumerate(by_type([tensor for tensor, _ in sent])):
        # A number, not the type, so that ranks with different types meet and are told.
        suffix = f".{number}" if number else ""
        outputs = allreduce_tensors(
            [sent[i][0] for i in members], op, prescale, postscale, name + suffix
        )
        for i, output in zip(members, outputs, strict=True):
            results[i] = compression.decompress(output, sent[i][1])
    return results
