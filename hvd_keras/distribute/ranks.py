"""The collectives of a strategy: those of a process set, each rank being one replica.

With one rank each function returns its argument. Names of collectives are made by naming.py, so
that in graphs each has its own, and in eager code those of one kind meet in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import collectives, world
from hvd_keras.compression import Compression
from hvd_keras.gradients import Reduction, reduce_gradients
from hvd_keras.op_calls import TYPES, ReduceOp, Sum
from hvd_keras.process_sets import ProcessSet, resolve

__all__ = ["Ranks"]


class Ranks:
    """The ranks of a strategy.

    Attributes:
        process_set: the same, as a process set.
        size: how many there are.
        rank: this one's number among them.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        resolve(process_set, "hvd.Strategy")
        self.process_set = process_set
        self.size = process_set.size()
        self.rank = process_set.rank()

    @property
    def first(self) -> int:
        """The global rank of the first of them."""
        return self.process_set.ranks[0]

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the first rank's value; what is no number (text, resources) stays as it is."""
        if self.size == 1:
            return value
        if value.dtype.is_complex:
            parts = tf.stack([tf.math.real(value), tf.math.imag(value)])
            return tf.complex(*tf.unstack(self.broadcast(parts, name)))
        if value.dtype not in TYPES:
            return value
        return collectives.broadcast(
            value, self.first, name, ignore_name_scope=True, process_set=self.process_set
        )

    def reduce(self, values: Sequence[Any], op: ReduceOp, name: str) -> list[Any]:
        """Combines tensors or ``tf.IndexedSlices``, each as soon as it is there."""
        if self.size == 1:
            return list(values)
        reduction = Reduction(op=op, name=name, process_set=self.process_set)
        return reduce_gradients(values, values, reduction)

    def reduce_together(self, values: Sequence[tf.Tensor], op: ReduceOp, name: str) -> list[Any]:
        """Combines tensors, those of one type in one operation."""
        if self.size == 1 or not values:
            return list(values)
        return collectives.grouped_allreduce(
            values, op=op, name=name, ignore_name_scope=True, process_set=self.process_set
        )

    def gather(self, value: Any, axis: int, name: str) -> tf.Tensor:
        """Joins the ranks' tensors, whose sizes may differ along ``axis``."""
        tensor = tf.convert_to_tensor(value)
        count = tensor.shape.rank
        if count is None or not -count <= axis < count:
            raise ValueError(
                f"tensors cannot be joined along axis {axis}: this one has the shape "
                f"{tensor.shape}; the axis must be one of its dimensions"
                + ("; give a scalar one with tf.reshape(value, [1])" if count == 0 else "")
            )
        if self.size == 1:
            return tensor
        axis %= count
        order = [axis, *(i for i in range(count) if i != axis)]
        back = [order.index(i) for i in range(count)]
        moved = tf.transpose(tensor, order) if axis else tensor
        joined = collectives.allgather(
            moved, name, ignore_name_scope=True, process_set=self.process_set
        )
        return tf.transpose(joined, back) if axis else joined

    def gradient_reduction(
        self, compression: Any, sparse_as_dense: bool, merge_slices: bool
    ) -> Reduction:
        """How an optimizer reduces: sums, since Keras has divided the loss by ``size``."""
        return Reduction(
            op=Sum,
            compression=compression or Compression.none,
            sparse_as_dense=sparse_as_dense,
            process_set=self.process_set,
            merge_slices=merge_slices,
        )

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self.size > 1:
            collectives.barrier("strategy.barrier", self.process_set)

    def __repr__(self) -> str:
        return f"rank {world.rank()} of {self.process_set!r}"
