"""SyncBatchNormalization: batch normalization over the batches of all ranks."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from hvd_keras import world
from hvd_keras.collectives import Sum, allreduce
from hvd_keras.keras import _versions

__all__ = ["SyncBatchNormalization", "class_for"]


class _Keras3(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` whose mean and variance are those of all ranks' inputs.

    In training it gives what one process would on the joined batch: outputs, gradients (with a
    ``DistributedOptimizer`` or tape) and moving statistics, also where the ranks' batches differ in
    size or are masked. Every rank has to run it equally often. Otherwise it is Keras's layer, of
    the Keras that ``tf.keras`` is; ``hvd_keras.tf_keras`` has that of Keras 2.

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
        return _moments(inputs, [i for i in range(len(inputs.shape)) if i != axis], mask)


class _Keras2:
    """The same for the layer of Keras 2, which is the next base of the class."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization has no fused form; leave fused out")
        for option in ("renorm", "virtual_batch_size", "synchronized"):
            if kwargs.get(option):
                raise ValueError(f"SyncBatchNormalization has no {option}; leave it out")
        super().__init__(fused=False, **kwargs)  # type: ignore[call-arg]

    @tf.autograph.experimental.do_not_convert
    def _calculate_mean_and_var(
        self, inputs: tf.Tensor, reduction_axes: list[int], keep_dims: bool, mask: Any = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        world.require_initialized("hvd.SyncBatchNormalization")
        if world.size() == 1:
            return super()._calculate_mean_and_var(  # type: ignore[misc]
                inputs, reduction_axes, keep_dims, mask=mask
            )
        if keep_dims:
            raise ValueError("SyncBatchNormalization normalizes one axis; axis has several")
        return _moments(inputs, list(reduction_axes), mask)


def _moments(
    inputs: tf.Tensor, axes: list[int], mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance over the axes, and over all ranks."""
    weights = tf.ones_like(inputs)
    if mask is not None:
        weights *= tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
    # The mean first, and the variance around it: the difference of two large sums of squares
    # would lose what one process on the joined batch keeps.
    sums = tf.stack([tf.reduce_sum(inputs * weights, axes), tf.reduce_sum(weights, axes)])
    total, count = tf.unstack(_sum(sums, "mean"))
    mean = tf.math.divide_no_nan(total, count)
    shape = [1 if i in axes else -1 for i in range(len(inputs.shape))]
    squares = tf.square(inputs - tf.reshape(mean, shape)) * weights
    squares = _sum(tf.reduce_sum(squares, axes), "variance")
    return mean, tf.math.divide_no_nan(squares, count)


def _sum(tensor: tf.Tensor, what: str) -> tf.Tensor:
    # Without the name scopes, which hold layer names: Keras numbers those per process.
    return allreduce(tensor, op=Sum, name=f"sync_batch_norm.{what}", ignore_name_scope=True)


@functools.cache
def class_for(module: Any) -> Any:
    """Returns the layer's class for a Keras module."""
    bases: Any = (_Keras3,) if module is keras else (_Keras2, module.layers.BatchNormalization)
    attributes = {"__doc__": _Keras3.__doc__, "__module__": __name__}
    cls = type("SyncBatchNormalization", bases, attributes)
    return module.saving.register_keras_serializable(package="hvd_keras")(cls)


SyncBatchNormalization = class_for(_versions.default_keras())
