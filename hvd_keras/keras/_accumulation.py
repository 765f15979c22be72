"""Sums of gradients over several batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["Accumulator"]


class _Sum:
    """The sum of one variable's gradients; of a sparse gradient, also which rows are in it.

    A sum of sparse gradients comes out as ``tf.IndexedSlices`` again: optimizers may leave alone
    the rows that a batch does not have, and only the others need to travel.
    """

    def __init__(self, variable: Any, grad: Any) -> None:
        self.variable = variable  # kept alive, since it is known by its id
        with tf.init_scope():
            self.total = tf.Variable(tf.zeros(variable.shape, grad.dtype), trainable=False)
            self.rows: tf.Variable | None = None
            if isinstance(grad, tf.IndexedSlices):
                self.rows = tf.Variable(tf.zeros(variable.shape[:1], tf.bool), trainable=False)

    def add(self, grad: Any) -> None:
        if not isinstance(grad, tf.IndexedSlices):
            self.total.assign_add(grad)
            if self.rows is not None:
                self.rows.assign(tf.ones_like(self.rows))
            return
        self.total.scatter_add(grad)
        if self.rows is not None:
            found = tf.ones_like(grad.indices, tf.bool)
            self.rows.scatter_update(tf.IndexedSlices(found, grad.indices))

    def take(self) -> Any:
        """Returns the sum, and sets it to zero."""
        if self.rows is None:
            total = self.total.read_value()
            self.total.assign(tf.zeros_like(total))
            return total
        indices = tf.where(self.rows)[:, 0]
        values = self.total.sparse_read(indices)
        self.total.scatter_update(tf.IndexedSlices(tf.zeros_like(values), indices))
        self.rows.assign(tf.zeros_like(self.rows))
        return tf.IndexedSlices(values, indices, tf.constant(self.total.shape.as_list(), tf.int64))


class Accumulator:
    """Sums the gradients of ``passes`` batches, in eager code and in ``tf.function``.

    Args:
        passes: the number of batches.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._sums: dict[int, _Sum] = {}
        with tf.init_scope():
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False)

    def add(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> tf.Tensor:
        """Adds a batch's gradients (dense or ``tf.IndexedSlices``, none of them None).

        Returns:
            Whether this was the last of the batches, so that the sums are to be taken: a scalar.
        """
        for grad, variable in grads_and_vars:
            if id(variable) not in self._sums:
                self._sums[id(variable)] = _Sum(variable, grad)
            self._sums[id(variable)].add(grad)
        return tf.equal(self._count.assign_add(1) % self._passes, 0)

    @property
    def batches(self) -> int:
        """How many batches have been added."""
        return int(self._count.numpy())

    def go_on_after(self, batches: int) -> None:
        """Takes over the number of batches of a rank that has added more.

        Where that rank has made other updates than this, what was added since the last one is not
        part of the next.
        """
        if self.batches % self._passes != batches % self._passes:
            for item in self._sums.values():
                item.take()
        self._count.assign(batches)

    def take(self, variables: Sequence[Any], average: bool) -> list[Any]:
        """Returns the sums for the variables, or the mean over batches, and starts again."""
        sums = [self._sums[id(variable)].take() for variable in variables]
        return [_divided(total, self._passes) for total in sums] if average else sums


def _divided(total: Any, divisor: int) -> Any:
    if isinstance(total, tf.IndexedSlices):
        values = total.values / tf.cast(divisor, total.values.dtype)
        return tf.IndexedSlices(values, total.indices, total.dense_shape)
    return total / tf.cast(divisor, total.dtype)
