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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvd_keras import _library, world
from hvd_keras.buckets import Piece, make_buckets
from hvd_keras.compression import Compression
from hvd_keras.naming import collective_name
from hvd_keras.op_calls import (
    TYPES,
    Adasum,
    Average,
    Max,
    ReduceOp,
    Sum,
    allreduce_tensors,
    device_scope,
    fence,
)
from hvd_keras.process_sets import ProcessSet, global_process_set, resolve
from hvd_keras.reductions import AdasumTypes
from hvd_keras.slices import allreduce_slices

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
        process_set: the ranks among which gradients are reduced.
        scale_local_gradients: divide the gradients of local variables, which are not reduced, by
            the number of ranks: what they are in the average of all ranks' losses.
        num_groups: how many buckets to make of the dense gradients, of about equally many
            variables each; 0 for buckets by size.
        groups: lists of variables whose gradients travel together, whatever their size; the others
            go by size.
        merge_slices: add up a rank's slices that have the same index before they travel, and send
            them as a dense tensor where the ranks have as many slices as there are rows.
    """

    op: ReduceOp = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    device_dense: str = ""
    device_sparse: str = ""
    name: str = "gradients"
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    num_groups: int = 0
    groups: Sequence[Sequence[Any]] | None = None
    merge_slices: bool = False

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum, Adasum):
            raise ValueError(
                f"op={self.op!r} cannot reduce gradients; expected hvd.Average, hvd.Sum or "
                "hvd.Adasum"
            )
        if isinstance(self.groups, int):  # as in Horovod, where groups came after num_groups
            object.__setattr__(self, "num_groups", self.groups)
            object.__setattr__(self, "groups", None)
        if self.num_groups < 0 or (self.num_groups and self.groups is not None):
            raise ValueError(
                f"num_groups={self.num_groups} and groups={self.groups!r}: expected one of them, "
                "and a number of at least 0"
            )
        if self.groups is not None and not _are_groups(self.groups):
            raise ValueError(
                f"groups={self.groups!r}: expected a number of groups, or a list of lists of "
                "variables, for example [model.layers[0].trainable_variables]"
            )
        if not isinstance(self.process_set, ProcessSet):
            raise TypeError(f"process_set={self.process_set!r} is not a hvd.ProcessSet")
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
    grads: Sequence[Any],
    variables: Sequence[Any],
    reduction: Reduction = Reduction(),
    local_variables: Collection[Any] = (),
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
        local_variables: variables that each rank has for itself; their gradients stay on the rank.

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
    set_id = resolve(reduction.process_set, "hvd.DistributedOptimizer")
    results = list(grads)
    if reduction.sparse_as_dense or reduction.op is Adasum:
        results = [tf.convert_to_tensor(g) if _is_sparse(g) else g for g in results]
    _check_types(results, variables)
    size = reduction.process_set.size()
    if size == 1:
        return results  # an average or a sum of one

    base = collective_name("gradients", reduction.name)
    _library.core.add_buckets(base)
    local_ids = {id(variable) for variable in local_variables}
    local = [i for i, variable in enumerate(variables) if id(variable) in local_ids]
    sparse = [i for i, grad in enumerate(results) if _is_sparse(grad) and i not in local]
    dense = [i for i in _dense(results) if i not in local]
    overwriting = [i for i in dense if _overwrites(variables[i])]
    averaged = [i for i in dense if not _overwrites(variables[i])]
    if reduction.scale_local_gradients and reduction.op is Average:
        for i in local:
            results[i] = _divided(results[i], size)

    threshold = settings.fusion_threshold
    with device_scope(reduction.device_dense):
        _reduce_dense(results, variables, averaged, base, threshold, reduction, set_id)
        _reduce_dense(results, variables, overwriting, f"{base}.overwrite", threshold, None, set_id)
    if sparse:
        with device_scope(reduction.device_sparse):
            gathered = allreduce_slices(
                [results[i] for i in sparse],
                reduction.op,
                reduction.compression,
                1.0,
                f"{base}.sparse",
                set_id,
                reduction.merge_slices,
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
    reduction: Reduction | None,
    process_set: int,
) -> None:
    """Reduces the chosen results in place; without a reduction, to the ranks' maximum."""
    compression: Any = Compression.none
    op, factor = Max, 1.0
    if reduction is not None:
        op, factor = reduction.op, reduction.gradient_predivide_factor
        compression = AdasumTypes if op is Adasum else reduction.compression
    sent = {i: compression.compress(tf.convert_to_tensor(results[i])) for i in chosen}
    pieces = [
        Piece(i, sent[i][0].dtype.name, _nbytes(variables[i], sent[i][0].dtype, threshold))
        for i in reversed(chosen)
    ]
    reduced: dict[int, tf.Tensor] = {}
    for number, bucket in enumerate(_buckets(pieces, variables, threshold, reduction)):
        members = [piece.position for piece in bucket]
        outputs = allreduce_tensors(
            [sent[i][0] for i in members],
            op,
            1.0 / factor,
            factor,
            f"{base}.{number}",
            process_set,
            node=_describe(f"{base}.{number}", [variables[i] for i in members]),
        )
        reduced.update(zip(members, outputs, strict=True))
    for i, output in zip(reduced, fence(list(reduced.values())), strict=True):
        results[i] = compression.decompress(output, sent[i][1])


def _are_groups(groups: Any) -> bool:
    # A variable is no group: to iterate over it gives its elements.
    collections = (list, tuple, set, frozenset)
    return isinstance(groups, collections) and all(
        isinstance(group, collections) and all(hasattr(v, "assign") for v in group)
        for group in groups
    )


def _buckets(
    pieces: list[Piece], variables: Sequence[Any], threshold: int, reduction: Reduction | None
) -> list[list[Piece]]:
    if reduction is None or not (reduction.num_groups or reduction.groups):
        return make_buckets(pieces, threshold)
    if reduction.num_groups:
        length = -(-len(pieces) // reduction.num_groups)
        groups = [pieces[i : i + length] for i in range(0, len(pieces), max(length, 1))]
        rest: list[Piece] = []
    else:
        wanted = [{id(variable) for variable in group} for group in reduction.groups or ()]
        groups = [[p for p in pieces if id(variables[p.position]) in ids] for ids in wanted]
        grouped = set().union(*wanted)
        rest = [p for p in pieces if id(variables[p.position]) not in grouped]
    # One operation has tensors of one type; a group of two types becomes two.
    unlimited = sum(piece.nbytes for piece in pieces) + 1
    made = [bucket for group in groups for bucket in make_buckets(group, unlimited)]
    return made + make_buckets(rest, threshold)


def _divided(grad: Any, divisor: int) -> Any:
    if grad is None:
        return None
    if _is_sparse(grad):
        return tf.IndexedSlices(
            _divided(grad.values, divisor), grad.indices, dense_shape=grad.dense_shape
        )
    return grad / tf.cast(divisor, grad.dtype)


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
