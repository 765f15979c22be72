"""SyncBatchNormalization: batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hvd_keras import world
from hvd_keras.collectives import Sum, allreduce

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="hvd_keras")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` whose mean and variance are those of all ranks' inputs.

    In training it gives what one process would on the joined batch: outputs, gradients (with a
    ``DistributedOptimizer`` or tape) and moving statistics, also where the ranks' batches differ in
    size or are masked. Every rank has to run it equally often. Otherwise it is Keras's layer.

    Args:
        fused: for Horovod's scripts; only False is possible.
        **kwargs: those of ``keras.layers.BatchNormalization``.

    Raises:
        ValueError: ``fused`` is True.
        NotInitializedError: ``hvd.init()`` has not been called when the layer is used in training.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization has no fused form; leave fused out")
        if not hasattr(keras.layers.BatchNormalization, "_moments"):
            raise NotImplementedError(
                f"SyncBatchNormalization does not know the layer of Keras {keras.__version__}"
            )
        super().__init__(**kwargs)

    @tf.autograph.experimental.do_not_convert
    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        world.require_initialized("hvd.SyncBatchNormalization")
        if world.size() == 1:
            return super()._moments(inputs, mask)
        axis = self.axis % len(inputs.shape)
        axes = [i for i in range(len(inputs.shape)) if i != axis]
        weights = tf.ones_like(inputs)
        if mask is not None:
            weights *= tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
        # The mean first, and the variance around it: the difference of two large sums of squares
        # would lose what one process on the joined batch keeps.
        sums = tf.stack([tf.reduce_sum(inputs * weights, axes), tf.reduce_sum(weights, axes)])
        total, count = tf.unstack(_sum(sums, "mean"))
        mean = tf.math.divide_no_nan(total, count)
        shape = [-1 if i == axis else 1 for i in range(len(inputs.shape))]
        squares = tf.square(inputs - tf.reshape(mean, shape)) * weights
        squares = _sum(tf.reduce_sum(squares, axes), "variance")
        return mean, tf.math.divide_no_nan(squares, count)


def _sum(tensor: tf.Tensor, what: str) -> tf.Tensor:
    # Without the name scopes, which hold layer names: Keras numbers those per process.
    return allreduce(tensor, op=Sum, name=f"sync_batch_norm.{what}", ignore_name_scope=True)
