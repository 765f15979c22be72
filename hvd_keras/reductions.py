"""Collectives that compute: allreduce and reducescatter, of one tensor or of several.

See collectives.py for what all collectives have in common.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.compression import Compression
from hvd_keras.naming import collective_name
from hvd_keras.op_calls import (
    Adasum,
    Average,
    ReduceOp,
    Sum,
    allreduce_tensors,
    by_type,
    device_scope,
    reducescatter_tensors,
    to_tensor,
)
from hvd_keras.process_sets import ProcessSet, global_process_set, resolve
from hvd_keras.slices import allreduce_slices

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


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
    process_set: ProcessSet = global_process_set,
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
        op: Average (the default), Sum, Min, Max, Product or Adasum. Average divides once, after
            summing; of integers it truncates toward zero. Adasum, of floats, adds what the ranks'
            tensors do not have in common and averages what they have.
        prescale_factor: multiplies the tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on all ranks; see naming.py.
        process_set: the ranks that take part; this one has to be among them.
        ignore_name_scope: in graphs, use ``name`` without the name scopes around it.

    Returns:
        A tensor (or ``tf.IndexedSlices``) of the type and shape of ``tensor``.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError, ValueError: an argument is wrong, or this rank is not in ``process_set``.
    """
    world.require_initialized("hvd.allreduce()")
    resolve(process_set, "hvd.allreduce()")
    op = resolve_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        full_name = collective_name("allreduce", name, ignore_name_scope=ignore_name_scope)
        with device_scope(device_sparse):
            scale = float(prescale_factor) * float(postscale_factor)
            (result,) = allreduce_slices(
                [tensor], op, compression, scale, full_name, resolve(process_set, "hvd.allreduce()")
            )
            return result
    (result,) = grouped_allreduce(
        [tensor],
        device_dense=device_dense,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name or "allreduce",
        process_set=process_set,
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
    process_set: ProcessSet = global_process_set,
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
    set_id = resolve(process_set, "hvd.grouped_allreduce()")
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
            set_id,
        )
    with device_scope(device_sparse):
        scale = float(prescale_factor) * float(postscale_factor)
        gathered = allreduce_slices(
            [results[i] for i in sparse], op, compression, scale, f"{full_name}.sparse", set_id
        )
    for i, result in zip([*dense, *sparse], [*reduced, *gathered], strict=True):
        results[i] = result
    return results


@tf.autograph.experimental.do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Combines the ranks' tensors and shares the result out along the first dimension.

    Args:
        tensor: as for ``allreduce``, of shape ``[d, ...]``. A scalar counts as a vector of one
            element.
        op: as for ``allreduce``, without Adasum.
        device_dense, compression, name, process_set, ignore_name_scope, prescale_factor,
            postscale_factor: as for ``allreduce``.

    Returns:
        This rank's rows, in rank order: of ``d`` rows and ``n`` ranks the first ``d % n`` ranks get
        ``d // n + 1`` and the others ``d // n``.

    Raises:
        NotInitializedError, TypeError, ValueError: as for ``allreduce``.
    """
    (result,) = grouped_reducescatter(
        [tensor],
        device_dense,
        compression,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        name=name or "reducescatter",
        ignore_name_scope=ignore_name_scope or not name,
    )
    return result


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Like ``reducescatter`` of each of ``tensors``, but all of one type travel together."""
    world.require_initialized("hvd.reducescatter()")
    if resolve_op(op) is Adasum:
        raise ValueError("hvd.reducescatter() has no op=hvd.Adasum; use hvd.allreduce()")
    set_id = resolve(process_set, "hvd.reducescatter()")
    full_name = collective_name("grouped_reducescatter", name, ignore_name_scope=ignore_name_scope)
    values = [at_least_vector(to_tensor(tensor, "hvd.reducescatter()")) for tensor in tensors]
    with device_scope(device_dense):
        return _by_type(
            values,
            compression,
            full_name,
            lambda sent, part_name: reducescatter_tensors(
                sent, op, prescale_factor, postscale_factor, part_name, set_id
            ),
        )


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


def at_least_vector(value: tf.Tensor) -> tf.Tensor:
    """Returns the tensor with a first dimension to work along."""
    return tf.reshape(value, [1]) if value.shape.rank == 0 else value


class AdasumTypes:
    """A compression the other way round: Adasum computes in float32 and float64."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        if tensor.dtype in (tf.float16, tf.bfloat16):
            return tf.cast(tensor, tf.float32), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, context: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, context)


def _allreduce_dense(
    tensors: Sequence[Any],
    op: ReduceOp,
    compression: Any,
    prescale: float,
    postscale: float,
    name: str,
    process_set: int,
) -> list[tf.Tensor]:
    values = [to_tensor(tensor, "hvd.allreduce()") for tensor in tensors]
    return _by_type(
        values,
        AdasumTypes if op is Adasum else compression,
        name,
        lambda sent, part_name: allreduce_tensors(
            sent, op, prescale, postscale, part_name, process_set
        ),
    )


def _by_type(
    values: Sequence[tf.Tensor],
    compression: Any,
    name: str,
    call: Callable[[list[tf.Tensor], str], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Makes one call for each type of tensor, and puts the results in order."""
    sent = [compression.compress(value) for value in values]
    results: list[Any] = [None] * len(values)
    for number, members in enumerate(by_type([tensor for tensor, _ in sent])):
        # A number, not the type, so that ranks with different types meet and are told.
        outputs = call([sent[i][0] for i in members], f"{name}.{number}" if number else name)
        for i, output in zip(members, outputs, strict=True):
            results[i] = compression.decompress(output, sent[i][1])
    return results
