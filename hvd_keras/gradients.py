"""reduce_gradients: the one road that gradients take between ranks.

Optimizers, tapes and strategies all call it. It packs dense gradients into buckets, in reverse
order of the variables, since the backward pass finishes the last layer first, and sends each
bucket as one operation, which starts as soon as its gradients exist. Sparse gradients
(``tf.IndexedSlices``) are gathered.

The operations are named by a prefix and the bucket's number, not by their content: ranks whose
models differ then meet at the first bucket that differs and are told how, while a rank on which
Keras has numbered the layers differently still trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.buckets import Piece, make_buckets
from hvd_keras.compression import Compression
from hvd_keras.naming import collective_name
from hvd_keras.op_calls import (
    TYPES,
    Average,
    Max,
    ReduceOp,
    Sum,
    allreduce_slices,
    allreduce_tensors,
    device_scope,
)

__all__ = ["Reduction", "reduce_gradients"]


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced; checked when it is made.

    Attributes:
        op: Average or Sum.
        compression: what floats travel as.
        sparse_as_dense: make ``tf.IndexedSlices`` dense first.
        gradient_predivide_factor: with Average, divide by this before the sum and by
            ``size / gradient_predivide_factor`` after it, so that sums of float16 do not overflow.
        device_dense, device_sparse: devices of the operations.
        name: prefix of the operations' names.
    """

    op: ReduceOp = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    device_dense: str = ""
    device_sparse: str = ""
    name: str = "gradients"

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            raise ValueError(
                f"op={self.op!r} cannot reduce gradients; expected hvd.Average or hvd.Sum"
            )
        if not self.gradient_predivide_factor > 0:
            raise ValueError(
                f"gradient_predivide_factor is {self.gradient_predivide_factor!r}; expected a "
                "number greater than 0"
            )
        if self.gradient_predivide_factor != 1.0 and self.op is not Average:
            raise ValueError(
                f"gradient_predivide_factor={self.gradient_predivide_factor} splits the division "
                f"of an average in two and has no meaning with op={self.op!r}; use op=hvd.Average"
            )


@tf.autograph.experimental.do_not_convert
def reduce_gradients(
    grads: Sequence[Any], variables: Sequence[Any], reduction: Reduction = Reduction()
) -> list[Any]:
    """Combines the ranks' gradients; every rank gets the same result, bit for bit.

    Args:
        grads: for each variable a dense tensor of a floating type, ``tf.IndexedSlices`` or None;
            None on one rank has to be None on all.
        variables: what the gradients belong to: variables, or (of a tape) any tensors. Gradients
            of Keras variables with ``overwrite_with_gradient`` are new values, the scales of
            float8 training: the ranks' maximum is taken, which is what one process would find on
            the joined batch.
        reduction: how.

    Returns:
        A list like ``grads``.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError: a gradient has a type that cannot be reduced.
        tf.errors.InvalidArgumentError: the ranks' gradients do not fit together (raised when the
            operations run).
    """
    settings = world.require_initialized("hvd.DistributedOptimizer or hvd.DistributedGradientTape")
    if len(grads) != len(variables):
        raise ValueError(f"{len(grads)} gradients were given for {len(variables)} variables")
    results = list(grads)
    if reduction.sparse_as_dense:
        results = [tf.convert_to_tensor(g) if _is_sparse(g) else g for g in results]
    _check_types(results, variables)
    if settings.size == 1:
        return results  # an average or a sum of one

    base = collective_name("gradients", reduction.name)
    sparse = [i for i, grad in enumerate(results) if _is_sparse(grad)]
    overwriting = [i for i in _dense(results) if _overwrites(variables[i])]
    averaged = [i for i in _dense(results) if not _overwrites(variables[i])]

    factor = reduction.gradient_predivide_factor
    with device_scope(reduction.device_dense):
        _reduce_dense(
            results,
            variables,
            averaged,
            base,
            settings.fusion_threshold,
            reduction.op,
            reduction.compression,
            1.0 / factor,
            factor,
        )
        _reduce_dense(
            results,
            variables,
            overwriting,
            f"{base}.overwrite",
            settings.fusion_threshold,
            Max,
            Compression.none,
            1.0,
            1.0,
        )
    if sparse:
        with device_scope(reduction.device_sparse):
            gathered = allreduce_slices(
                [results[i] for i in sparse],
                reduction.op,
                reduction.compression,
                1.0,
                f"{base}.sparse",
            )
        for i, slices in zip(sparse, gathered, strict=True):
            results[i] = slices
    return results


def _reduce_dense(
    results: list[Any],
    variables: Sequence[Any],
    chosen: list[int],
    base: str,
    threshold: int,
    op: ReduceOp,
    compression: Any,
    prescale: float,
    postscale: float,
) -> None:
    sent = {i: compression.compress(tf.convert_to_tensor(results[i])) for i in chosen}
    pieces = [
        Piece(i, sent[i][0].dtype.name, _nbytes(variables[i], sent[i][0].dtype, threshold))
        for i in reversed(chosen)
    ]
    for number, bucket in enumerate(make_buckets(pieces, threshold)):
        members = [piece.position for piece in bucket]
        outputs = allreduce_tensors(
            [sent[i][0] for i in members],
            op,
            prescale,
            postscale,
            f"{base}.{number}",
            node=_describe(f"{base}.{number}", [variables[i] for i in members]),
        )
        for i, output in zip(members, outputs, strict=True):
            results[i] = compression.decompress(output, sent[i][1])


def _nbytes(variable: Any, dtype: tf.DType, threshold: int) -> int:
    # Only a variable's shape is the same on all ranks. What a tensor's static shape says depends on
    # what its rank has traced before, so a tensor fills a bucket alone.
    shape = tf.TensorShape(variable.shape)
    if not hasattr(variable, "assign") or not shape.is_fully_defined():
        return threshold + 1
    return shape.num_elements() * dtype.size


def _describe(name: str, variables: Sequence[Any]) -> str:
    """Returns the name of the graph node: it is what TensorFlow's error messages show."""
    first, last = _label(variables[0]), _label(variables[-1])
    return f"{name}_{first}" + (f"_to_{last}" if len(variables) > 1 else "")


def _label(variable: Any) -> str:
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "tensor")


def _dense(grads: Sequence[Any]) -> list[int]:
    return [i for i, grad in enumerate(grads) if grad is not None and not _is_sparse(grad)]


def _is_sparse(grad: Any) -> bool:
    return isinstance(grad, tf.IndexedSlices)


def _overwrites(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _check_types(grads: Sequence[Any], variables: Sequence[Any]) -> None:
    for grad, variable in zip(grads, variables, strict=True):
        if grad is not None and tf.as_dtype(grad.dtype) not in TYPES:
            raise TypeError(
                f"the gradient of {_label(variable)} is of type {tf.as_dtype(grad.dtype).name}, "
                "which cannot be reduced; expected float16, bfloat16, float32 or float64"
            )
