"""Reducing sparse tensors (``tf.IndexedSlices``): the ranks' slices are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras.graph_order import is_compiled
from hvd_keras.op_calls import (
    Average,
    ReduceOp,
    Sum,
    allgather_tensors,
    allreduce_tensors,
    by_type,
    to_tensor,
)

__all__ = ["allreduce_slices"]


def allreduce_slices(
    slices: Sequence[tf.IndexedSlices],
    op: ReduceOp,
    compression: Any,
    scale: float,
    name: str,
    process_set: int = 0,
    merge: bool = False,
) -> list[tf.IndexedSlices]:
    """Joins the slices of all ranks, multiplied by ``scale``; ``name`` is used as it is.

    As they are, the slices travel in one allgather of the values and one of the indices per type.
    An index that several slices have, of one rank or of several, stays several slices, exactly as
    in the gradient that one process computes on the joined batch.

    With ``merge``, slices that have the same index are added up: those of one rank before they
    travel, those of different ranks after. The indices are gathered first: where the ranks together
    have at least as many slices as the tensor has rows, the values travel as a dense tensor.
    (XLA's tensors have fixed shapes, so in what it compiles nothing is merged.)

    Raises:
        NotImplementedError: ``op`` is neither Sum nor Average.
    """
    if slices and op not in (Sum, Average):
        raise NotImplementedError(
            f"tf.IndexedSlices can be reduced with hvd.Sum and hvd.Average, not with {op!r}; "
            "convert them with tf.convert_to_tensor() first"
        )
    if not slices:
        return []
    if is_compiled():
        merge = False
    slices = [_as_tensors(s) for s in slices]
    sent = [_merged(s, name) if merge else s for s in slices]
    # Who takes part is known when the operation runs only, since ranks may have joined. Counted
    # from values: XLA would know the size, and multiply by its rounded inverse instead of dividing.
    one = tf.ones([1], sent[0].indices.dtype)
    *indices, ones = _gather_by_type(
        [*(s.indices for s in sent), one], f"{name}.indices", process_set
    )
    if merge:
        sums = [
            _sum(own, index, compression, f"{name}.{number}", process_set)
            for number, (own, index) in enumerate(zip(sent, indices, strict=True))
        ]
    else:
        values = _gathered_values(sent, compression, name, process_set)
        sums = list(zip(values, indices, strict=True))
    contributors = tf.reduce_sum(ones)
    results = []
    for original, (value, index) in zip(slices, sums, strict=True):
        if op is Average:
            divide = tf.truncatediv if value.dtype.is_integer else tf.divide
            value = divide(value, tf.cast(contributors, value.dtype))
        if scale != 1.0:
            value = value * tf.cast(scale, value.dtype)
        results.append(tf.IndexedSlices(value, index, original.dense_shape))
    return results


def _as_tensors(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """TensorFlow keeps what it was given, which may be lists, arrays or variables."""
    shape = slices.dense_shape
    return tf.IndexedSlices(
        tf.convert_to_tensor(slices.values),
        tf.convert_to_tensor(slices.indices),
        None if shape is None else tf.convert_to_tensor(shape),
    )


def _gathered_values(
    slices: Sequence[tf.IndexedSlices], compression: Any, name: str, process_set: int
) -> list[tf.Tensor]:
    sent = [compression.compress(to_tensor(s.values, name)) for s in slices]
    gathered = _gather_by_type([tensor for tensor, _ in sent], f"{name}.values", process_set)
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(gathered, sent, strict=True)
    ]


def _gather_by_type(tensors: Sequence[tf.Tensor], name: str, process_set: int) -> list[tf.Tensor]:
    results: list[Any] = [None] * len(tensors)
    for number, members in enumerate(by_type(tensors)):
        full_name = f"{name}.{number}" if number else name
        outputs = allgather_tensors([tensors[i] for i in members], full_name, process_set)
        for i, output in zip(members, outputs, strict=True):
            results[i] = output
    return results


def _merged(slices: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    """Adds up the slices that have the same index."""
    values, indices = _added_up(to_tensor(slices.values, name), slices.indices)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _added_up(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    unique, positions = tf.unique(indices)
    summed = tf.math.unsorted_segment_sum(values, positions, tf.size(unique))
    return tf.ensure_shape(summed, [None, *values.shape[1:]]), unique


def _sum(
    own: tf.IndexedSlices, indices: tf.Tensor, compression: Any, name: str, process_set: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sums of all ranks' slices and their indices; ``indices`` are all that came."""

    def as_slices() -> tuple[tf.Tensor, tf.Tensor]:
        (values,) = _gathered_values([own], compression, name, process_set)
        return _added_up(values, indices)

    def as_dense() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.cast(own.dense_shape, own.indices.dtype)
        dense = tf.scatter_nd(tf.expand_dims(own.indices, 1), own.values, shape)
        sent, context = compression.compress(dense)
        (summed,) = allreduce_tensors([sent], Sum, 1.0, 1.0, f"{name}.dense", process_set)
        # Only what a rank has touched: to some optimizers a slice of zeros is not the same as none.
        touched = tf.unique(indices)[0]
        return tf.gather(compression.decompress(summed, context), touched), touched

    if own.dense_shape is None:
        return as_slices()
    # The indices of all ranks are the same on all, and so is what they decide.
    rows = tf.cast(own.dense_shape[0], tf.int64)
    return tf.cond(tf.size(indices, out_type=tf.int64) >= rows, as_dense, as_slices)
