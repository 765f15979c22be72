"""Variables of a strategy: TensorFlow's, of one component each, with our collectives.

- Mirrored variables get the first rank's value when they are created, and are equal on all ranks.
  Assigned by a replica, they get what their aggregation says: the ranks' sum, their mean, or the
  first rank's value. Keras gives its own no aggregation, or that of the first rank, where every
  rank computes the same; such are assigned locally. The exception are moving statistics, as of
  BatchNormalization: each rank assigns its own, and they become the ranks' mean at the end of the
  step (see replica.py). The states of stateful RNN layers belong to a rank's own examples.
- Variables that are synchronized on read, like Keras's metrics, differ between ranks until they are
  read outside of ``run``.
- The states of Keras's seed generators are equal on all ranks, but a replica reads a seed of its
  own from them: dropout differs between ranks, also after a checkpoint was read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, values, values_util

from hvd_keras.distribute.ranks import Ranks
from hvd_keras.distribute.replica import Replica, current_replica, in_optimizer
from hvd_keras.op_calls import Average, ReduceOp, Sum

__all__ = ["create"]

_Aggregation = tf.VariableAggregation
_REDUCTIONS: dict[Any, ReduceOp] = {_Aggregation.SUM: Sum, _Aggregation.MEAN: Average}

# Odd, so that no two ranks' multiples of it are equal in 32 bits; and its bits are well mixed.
_SEED_STEP = 0x9E3779B1


def create(strategy: Any, ranks: Ranks, next_creator: Any, kwargs: dict[str, Any]) -> Any:
    """Makes a variable in the strategy's scope; the arguments are those of TensorFlow's creators.

    Raises:
        ValueError: its synchronization is NONE, which no strategy knows.
        tf.errors.InvalidArgumentError: the ranks create different ones.
    """
    is_keras = _is_made_by_keras()
    kwargs["initial_value"] = _first_ranks(ranks, kwargs.get("initial_value"), kwargs.get("dtype"))

    def create_component(**arguments: Any) -> list[Any]:
        return [next_creator(**arguments)]

    mirrored = SeedState if _is_seed_state(kwargs) else MirroredVariable
    classes = {
        tf.VariableSynchronization.ON_WRITE: mirrored,
        tf.VariableSynchronization.ON_READ: SyncOnReadVariable,
    }
    variable = distribute_utils.create_mirrored_variable(
        strategy, create_component, classes, distribute_utils.VARIABLE_POLICY_MAPPING, **kwargs
    )
    variable.hvd_is_keras = is_keras
    return variable


def _first_ranks(ranks: Ranks, initial: Any, dtype: Any) -> Any:
    """Returns a function that computes the initial value on the first rank."""
    if initial is None or ranks.size == 1:
        return initial  # None: a variable that loading a SavedModel makes, and restores

    def initial_value(*args: Any, **kwargs: Any) -> Any:
        value = initial(*args, **kwargs) if callable(initial) else initial
        # Of a checkpoint that is being read the value comes in a box.
        value = getattr(value, "wrapped_value", value)
        return ranks.broadcast(tf.convert_to_tensor(value, dtype), "strategy.variable")

    return initial_value


def _is_made_by_keras() -> bool:
    """Whether a ``keras.Variable`` makes the variable; TensorFlow is not told."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_initialize" and isinstance(
            frame.f_locals.get("self"), keras.Variable
        ):
            return True
        frame = frame.f_back
    return False


def _is_seed_state(kwargs: dict[str, Any]) -> bool:
    return str(kwargs.get("name") or "").split("/")[-1] == "seed_generator_state"


class _Number:
    """What scripts do with a learning rate or a step; TensorFlow's distributed variables do not."""

    hvd_is_keras = False
    numpy: Callable[[], Any]

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        del copy  # it always is one
        return np.asarray(self.numpy(), dtype)


class MirroredVariable(_Number, values.MirroredVariable):
    """A variable that is equal on all ranks."""

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        ranks = self.distribute_strategy.extended.ranks
        if self.aggregation == _Aggregation.NONE or ranks.size == 1:
            result = update_fn(self.values[0], value, **kwargs)
            replica = current_replica()
            if replica is not None and ranks.size > 1 and self._is_statistic():
                replica.note_statistic(self)
            return result
        value = self._aggregated(ranks, value)
        values_util.mark_as_unsaveable()
        return update_fn(self.values[0], value, **kwargs)

    def _is_statistic(self) -> bool:
        return (
            self.hvd_is_keras
            and not self.trainable
            and self.dtype.is_floating
            and not in_optimizer()
            and self.name.split("/")[-1].split(":")[0] != "rnn_state"
        )

    def _aggregated(self, ranks: Ranks, value: Any) -> Any:
        if not (tf.is_tensor(value) or isinstance(value, tf.IndexedSlices)):
            return value  # a number of the program, the same on all ranks
        if self.aggregation == _Aggregation.ONLY_FIRST_REPLICA:
            if self.hvd_is_keras:
                return value
            if isinstance(value, tf.IndexedSlices):
                raise NotImplementedError(
                    f"the variable {self.name} has aggregation ONLY_FIRST_REPLICA, and "
                    "tf.IndexedSlices cannot be broadcast; convert them with tf.convert_to_tensor"
                )
            return ranks.broadcast(value, "strategy.assign")
        if self.aggregation == _Aggregation.MEAN and not value.dtype.is_floating:
            raise ValueError(
                f"the variable {self.name} of type {self.dtype.name} has aggregation MEAN; the "
                "mean of the ranks' integers is none; use SUM or a floating type"
            )
        (result,) = ranks.reduce([value], _REDUCTIONS[self.aggregation], "strategy.assign")
        return result


class SyncOnReadVariable(_Number, values.SyncOnReadVariable):
    """A variable of which each rank has its own; reading it outside of ``run`` combines them."""

    def _get_cross_replica(self) -> Any:
        if self.aggregation != _Aggregation.ONLY_FIRST_REPLICA:
            return super()._get_cross_replica()
        ranks = self.distribute_strategy.extended.ranks
        return ranks.broadcast(tf.convert_to_tensor(self.values[0]), "strategy.read")

    def value(self) -> Any:
        if self.aggregation == _Aggregation.ONLY_FIRST_REPLICA and current_replica() is None:
            return tf.convert_to_tensor(self._get_cross_replica())
        return super().value()


class SeedState(MirroredVariable):
    """The state of a seed generator: ``[seed, counter]``."""

    # All ways to read it, also those of operators, go through one of these two.

    def _get(self) -> Any:
        return super()._get() + self._offset()

    def value(self) -> Any:
        return super().value() + self._offset()

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        return super()._update_replica(update_fn, value - self._offset(), **kwargs)

    def _offset(self) -> Any:
        replica: Replica | None = current_replica()
        rank = 0 if replica is None else self.distribute_strategy.extended.ranks.rank
        bits = rank * _SEED_STEP % 2**32
        if self.dtype == tf.int32 and bits >= 2**31:
            bits -= 2**32
        return tf.constant([bits, 0], self.dtype)
