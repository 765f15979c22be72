"""Gradients of the collectives.

One convention for all: the gradient that a rank gets is the derivative of the *sum of all ranks'
losses* with respect to that rank's input, as in Horovod and in torch.distributed. With a loss of 1
per element of the output on each of N ranks that makes

    Sum        N: the input is in the output of all N ranks
    Average    1
    Min, Max   N where the rank holds the extreme value (shared equally between ranks that tie),
               0 elsewhere
    allgather  N: the ranks' gradients for this rank's slices, added up
    broadcast  N at the root, 0 on the other ranks
    reducescatter  of Sum 1 and of Average 1/N: each element is in the output of one rank
    alltoall   1: the gradients go back the way that the rows came

Scaling factors multiply it. The gradient of Product, and of Min and Max with scaling factors, is
not defined: asking for it raises ``LookupError``. Gradients are computed with collectives of their
own, so every rank has to ask for them; they can be differentiated again.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import _library
from hvd_keras.graph_order import call_attributes, outside_of_clusters
from hvd_keras.naming import collective_name

__all__ = ["register"]


@functools.cache
def register() -> None:
    """Tells TensorFlow about the gradients; it accepts that once per process."""
    tf.RegisterGradient("HvdAllreduce")(outside_of_clusters(_allreduce_gradient))
    tf.RegisterGradient("HvdAllgather")(outside_of_clusters(_allgather_gradient))
    tf.RegisterGradient("HvdBroadcast")(outside_of_clusters(_broadcast_gradient))
    tf.RegisterGradient("HvdReducescatter")(outside_of_clusters(_reducescatter_gradient))
    tf.RegisterGradient("HvdAlltoall")(outside_of_clusters(_alltoall_gradient))
    tf.RegisterGradient("HvdFence")(lambda op, *upstream: list(upstream))
    # Constants, as far as a loss is concerned.
    for kind in ("HvdJoin", "HvdRank", "HvdSize", "HvdLocalRank", "HvdLocalSize"):
        tf.no_gradient(kind)
    tf.no_gradient("HvdProcessSetIncluded")


def _allreduce_gradient(op: tf.Operation, *upstream: Any) -> list[tf.Tensor]:
    reduce_op = _text(op.get_attr("reduce_op"))
    if reduce_op in ("sum", "average"):
        # With scaling factors and division being linear, the same operation gives the gradient:
        # for Average the sum over ranks of upstream / N.
        return _allreduce(op, upstream, reduce_op)
    if reduce_op in ("product", "adasum"):
        remedy = "; use tf.reduce_prod of hvd.allgather, which has one" * (reduce_op == "product")
        raise LookupError(
            f"The gradient of hvd.allreduce(op=hvd.{reduce_op.capitalize()}), name "
            f"{_name(op)!r}, is not defined{remedy}"
        )
    if _scaled(op):
        raise LookupError(
            f"The gradient of hvd.allreduce(op=hvd.{reduce_op.capitalize()}), name {_name(op)!r}, "
            "is not defined with prescale_factor or postscale_factor; multiply the tensor instead"
        )
    return _extreme_gradient(op, upstream)


def _extreme_gradient(op: tf.Operation, upstream: Sequence[Any]) -> list[tf.Tensor]:
    inputs, outputs = list(op.inputs), list(op.outputs)
    holds = [tf.cast(tf.equal(x, y), y.dtype) for x, y in zip(inputs, outputs, strict=True)]
    summed = _allreduce(op, [*upstream, *holds], "sum")
    totals, holders = summed[: len(inputs)], summed[len(inputs) :]
    return [total * mine / count for total, mine, count in zip(totals, holds, holders, strict=True)]


def _allgather_gradient(op: tf.Operation, *upstream: Any) -> list[tf.Tensor]:
    inputs = list(op.inputs)
    rows = tf.stack([tf.shape(x, out_type=tf.int64)[0] for x in inputs])
    name = _gradient_name(op, "rows")
    (all_rows,) = _library.ops.hvd_allgather(
        [tf.reshape(rows, [1, -1])], **call_attributes(name, _process_set(op))
    )
    ranks = _library.core.process_set_ranks(_process_set(op))
    starts = tf.reduce_sum(all_rows[: ranks.index(_library.core.rank())], axis=0)
    totals = _allreduce(op, upstream, "sum")
    gradients = []
    for i, (x, total) in enumerate(zip(inputs, totals, strict=True)):
        # Not total[start : start + rows], whose size XLA would not know.
        size = tf.shape(x, out_type=tf.int64)
        mine = tf.slice(total, tf.pad(starts[i : i + 1], [[0, x.shape.rank - 1]]), size)
        gradients.append(tf.ensure_shape(mine, x.shape))
    return gradients


def _broadcast_gradient(op: tf.Operation, *upstream: Any) -> list[tf.Tensor]:
    totals = _allreduce(op, upstream, "sum")
    if _library.core.rank() == op.get_attr("root_rank"):
        return totals
    # Not used here, but the root waits for it: a TF1 session runs only what something depends on.
    with tf.control_dependencies(totals):
        return [tf.zeros_like(total) for total in totals]


def _reducescatter_gradient(op: tf.Operation, *upstream: Any) -> list[tf.Tensor]:
    reduce_op = _text(op.get_attr("reduce_op"))
    if reduce_op not in ("sum", "average"):
        raise LookupError(
            f"The gradient of hvd.reducescatter(op=hvd.{reduce_op.capitalize()}), name "
            f"{_name(op)!r}, is not defined; use hvd.allreduce and take this rank's rows of it"
        )
    tensors = [tf.convert_to_tensor(tensor) for tensor in upstream]
    one = tf.ones([1], tensors[0].dtype)  # from each rank that takes part: who they are, is counted
    name = _gradient_name(op)
    *gathered, ones = _library.ops.hvd_allgather(
        [*tensors, one], **call_attributes(name, _process_set(op))
    )
    factor = _factor(op, "prescale_bits") * _factor(op, "postscale_bits")
    scale = tf.cast(factor, one.dtype)
    if reduce_op == "average":
        # Not tf.size(ones), which XLA would know, and turn the division into a multiplication.
        scale = scale / tf.reduce_sum(ones)
    return [
        tf.ensure_shape(gradient * scale, x.shape)
        for gradient, x in zip(gathered, op.inputs, strict=True)
    ]


def _alltoall_gradient(
    op: tf.Operation, upstream: Any, _received_splits: Any
) -> tuple[tf.Tensor, None]:
    name = _gradient_name(op)
    gradient, _ = _library.ops.hvd_alltoall(
        tf.convert_to_tensor(upstream),
        op.outputs[1],
        **call_attributes(name, _process_set(op)),
    )
    return tf.ensure_shape(gradient, op.inputs[0].shape), None


def _allreduce(op: tf.Operation, tensors: Sequence[Any], reduce_op: str) -> list[tf.Tensor]:
    one = struct.unpack("<q", struct.pack("<d", 1.0))[0]
    has_factors = op.type == "HvdAllreduce"
    name = _gradient_name(op)
    return _library.ops.hvd_allreduce(
        [tf.convert_to_tensor(tensor) for tensor in tensors],  # some are tf.IndexedSlices
        reduce_op=reduce_op,
        prescale_bits=op.get_attr("prescale_bits") if has_factors else one,
        postscale_bits=op.get_attr("postscale_bits") if has_factors else one,
        **call_attributes(name, _process_set(op)),
    )


def _scaled(op: tf.Operation) -> bool:
    return _factor(op, "prescale_bits") != 1.0 or _factor(op, "postscale_bits") != 1.0


def _factor(op: tf.Operation, attribute: str) -> float:
    return struct.unpack("<d", struct.pack("<q", op.get_attr(attribute)))[0]


def _gradient_name(op: tf.Operation, part: str = "") -> str:
    # Made from the op's name, which all ranks share, and not from a counter: how many gradients a
    # rank has computed before may differ between ranks.
    suffix = f".gradient.{part}" if part else ".gradient"
    return collective_name("gradient", _name(op) + suffix)


def _name(op: tf.Operation) -> str:
    return _text(op.get_attr("tensor_name"))


def _process_set(op: tf.Operation) -> int:
    return op.get_attr("process_set")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
