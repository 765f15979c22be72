"""Teaches Keras's LossScaleOptimizer to agree with the other ranks.

It skips a step whose gradients are not finite. Around a distributed optimizer that must not be
decided by one rank's gradients: a rank that skipped would leave the others waiting in the
reduction. The class is changed, not an object, because ``Model.compile`` makes the object itself.
Around any other optimizer nothing changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_keras.collectives import Min, allreduce
from hvd_keras.keras.optimizer import Keras3Mixin

__all__ = ["install"]


@functools.cache
def install() -> None:
    """Changes ``keras.optimizers.LossScaleOptimizer``, once."""
    cls = keras.optimizers.LossScaleOptimizer
    cls.apply = _reducing_apply(cls.apply)
    cls.check_finite = _agreed_check_finite(cls.check_finite)


def _reducing_apply(original: Callable) -> Callable:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not isinstance(inner, Keras3Mixin) or inner.hvd_accumulates:
            original(self, grads, trainable_variables)
            return
        # Reduced while still scaled: an overflow on any rank, or in the sum, is in the result on
        # all of them, and narrow types (Compression.fp16) lose fewer small values.
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = trainable_variables or self._trainable_variables
        grads = inner.hvd_reduce(list(grads), variables)
        with inner.hvd_gradients_reduced():
            original(self, grads, trainable_variables)

    return apply


def _agreed_check_finite(original: Callable) -> Callable:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(original)
    def check_finite(self: Any, grads: Sequence[Any]) -> tf.Tensor:
        finite = original(self, grads)
        inner = self.inner_optimizer
        if not isinstance(inner, Keras3Mixin) or not inner.hvd_accumulates:
            return finite
        # The gradients of the batch stay on this rank until the update, so ask the others.
        ranks = inner.process_set
        if ranks.size() == 1:
            return finite
        return allreduce(
            finite, op=Min, name="loss_scale_finite", ignore_name_scope=True, process_set=ranks
        )

    return check_finite
