"""Keras optimizers under a strategy: made distributed when they are first used.

Keras's own code for strategies adds up the gradients after they were clipped, so that with clipping
several replicas train differently from one. A distributed optimizer (hvd_keras/keras/optimizer.py)
reduces first, once per update, and agrees on overflows. So an optimizer that applies gradients in a
replica becomes one, whose reduction is the sum: Keras has divided the loss by the number of ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_keras.distribute.replica import current_replica, set_in_optimizer
from hvd_keras.keras._distributed import DistributedMixin, distributed_in
from hvd_keras.keras.optimizer import Keras3Mixin, adds_up_slices, keras3_class

__all__ = ["install", "make_distributed"]


class StrategyMixin(Keras3Mixin):
    """A distributed optimizer whose gradients Keras is not to add up once more."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> list[Any]:
        return list(grads_and_vars)


def make_distributed(optimizer: Any, strategy: Any) -> None:
    """Makes the optimizer, or the one that it scales the loss for, reduce for this strategy.

    Raises:
        ValueError: it is the result of ``hvd.DistributedOptimizer``.
    """
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
        return  # those that it is made of apply the gradients
    extended = strategy.extended
    if extended.ranks.size == 1:
        return
    if isinstance(optimizer, StrategyMixin):
        if optimizer.process_set != extended.ranks.process_set:
            raise ValueError(
                f"this {type(optimizer).__name__} optimizer has been used with {strategy!r} of "
                f"{optimizer.process_set!r} and is used with one of "
                f"{extended.ranks.process_set!r}; make a new optimizer"
            )
        return
    if distributed_in(optimizer) is not None:
        raise ValueError(
            f"this {type(optimizer).__name__} optimizer is a hvd.DistributedOptimizer, and "
            "hvd.Strategy reduces its gradients as well; give the model the plain Keras optimizer"
        )
    reduction = extended.ranks.gradient_reduction(
        extended.compression, extended.sparse_as_dense, adds_up_slices(optimizer)
    )
    cls = keras3_class(type(optimizer), reduction, StrategyMixin)
    object.__setattr__(optimizer, "__class__", cls)
    # One that was made outside of the scope would look for its variables there.
    object.__setattr__(optimizer, "_distribution_strategy", strategy)


@functools.cache
def install() -> None:
    """Changes ``apply`` of Keras's optimizers, once. Without a strategy of ours nothing changes."""
    keras.optimizers.Optimizer.apply = _applying(keras.optimizers.Optimizer.apply)
    scaling = keras.optimizers.LossScaleOptimizer
    scaling.apply = _preparing(scaling.apply)


def _applying(original: Callable) -> Callable:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        replica = current_replica()
        if replica is None:
            original(self, grads, trainable_variables)
            return
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        is_new = not isinstance(self, DistributedMixin)
        make_distributed(self, replica.strategy)
        if is_new and isinstance(self, DistributedMixin) and grads and not self._hvd_reduced:
            # The class's own apply has been passed by; from the next call on it reduces.
            grads = self.hvd_reduce(grads, trainable_variables or self._trainable_variables)
        before = set_in_optimizer(True)
        try:
            original(self, grads, trainable_variables)
        finally:
            set_in_optimizer(before)

    return apply


def _preparing(original: Callable) -> Callable:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        replica = current_replica()
        if replica is None:
            original(self, grads, trainable_variables)
            return
        make_distributed(self, replica.strategy)
        before = set_in_optimizer(True)
        try:
            original(self, grads, trainable_variables)
        finally:
            set_in_optimizer(before)

    return apply
