"""What Keras does differently for a model whose strategy is ours, and has several ranks.

- Its means of losses are taken over the joined batch, also where the ranks' parts differ in size.
- At the end of an epoch the metrics are read after all ranks have finished it.
- ``predict`` returns the predictions for all data on every rank.
- Arrays are shuffled alike on all ranks.
- ``ModelCheckpoint`` and ``BackupAndRestore`` write on the first rank only.
- Its optimizers reduce first (see optimizers.py).

Keras leaves no room for these from outside, so methods of its classes are wrapped, once, when the
first strategy is made. For other models they do what they did.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from hvd_keras.distribute import optimizers, shuffling
from hvd_keras.distribute.replica import current_replica
from hvd_keras.keras import _peers, epochs
from hvd_keras.op_calls import Average

__all__ = ["install"]

_LOSSES = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
_MODEL = ("make_train_function", "make_predict_function", "_get_metrics_result_or_logs")


@functools.cache
def install() -> None:
    """Wraps them, once.

    Raises:
        NotImplementedError: this release of Keras does not have what is to be wrapped.
    """
    from keras.src.backend.tensorflow import trainer

    losses: Any = sys.modules.get("keras.src.losses.loss")
    model: Any = keras.Model
    iterator: Any = getattr(trainer, "TFEpochIterator", None)
    needed = {losses: _LOSSES, model: _MODEL, iterator: ()}
    if None in needed or not all(hasattr(owner, n) for owner in needed for n in needed[owner]):
        raise NotImplementedError(
            f"hvd.Strategy does not know Keras {keras.__version__}; use hvd.DistributedOptimizer "
            "with this release, or Keras 3.8 or later"
        )
    optimizers.install()
    for name, inverse in zip(_LOSSES, (False, True), strict=True):
        setattr(losses, name, _by_share(getattr(losses, name), inverse))
    iterator.__init__ = _shuffling_alike(iterator.__init__)
    model.make_train_function = _preparing_optimizers(model.make_train_function)
    model._get_metrics_result_or_logs = _of_all_ranks(model._get_metrics_result_or_logs)
    model.predict = _marking(model.predict, "_hvd_predicts")
    model.evaluate = _marking(model.evaluate, "_hvd_evaluates")
    model.make_predict_function = _gathering(model.make_predict_function)
    checkpoint, backup = keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore
    checkpoint._save_model = _on_first_rank(checkpoint._save_model)
    backup._save_model = _on_first_rank(backup._save_model)
    backup.on_train_end = _on_first_rank(backup.on_train_end, wait=True)


def _ranks_of(model: Any) -> Any:
    """Returns the ranks that the model is trained on, or None where there are not several."""
    strategy = getattr(model, "distribute_strategy", None)
    ranks = getattr(getattr(strategy, "extended", None), "ranks", None)
    return ranks if ranks is not None and ranks.size > 1 else None


def _marking(original: Callable, mark: str) -> Callable:
    """Lets the methods that ``original`` calls know that it does."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _ranks_of(self) is None:
            return original(self, *args, **kwargs)
        object.__setattr__(self, mark, True)
        try:
            return original(self, *args, **kwargs)
        finally:
            object.__setattr__(self, mark, False)

    return method


# Losses


def _by_share(original: Callable, inverse: bool) -> Callable:
    """Multiplies by this rank's share of the batch, which is 1/size where all are alike."""

    @functools.wraps(original)
    def scale(value: Any) -> Any:
        replica = current_replica()
        share = None if replica is None else replica.share()
        if share is None:
            return original(value)
        factor = tf.math.divide_no_nan(tf.ones_like(share), share) if inverse else share
        return value * tf.cast(factor, value.dtype)

    return scale


# fit and evaluate


def _preparing_optimizers(original: Callable) -> Callable:
    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        if _ranks_of(self) is not None:
            for optimizer in _peers.optimizers_of(self):
                optimizers.make_distributed(optimizer, self.distribute_strategy)
        return original(self, force)

    return make_train_function


def _of_all_ranks(original: Callable) -> Callable:
    @functools.wraps(original)
    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        ranks = _ranks_of(self)
        if ranks is None:
            return original(self, logs)
        if not getattr(self, "_hvd_evaluates", False):
            # A rank that has no more data must not ask the others for metrics while they train.
            epochs.end_of_data(self)
        result = original(self, logs)
        if result is not logs or not isinstance(result, dict):
            return result
        # What a train_step of the user's own returns are this rank's values.
        names = [name for name, value in result.items() if _is_number(value)]
        own = [tf.cast(tf.convert_to_tensor(result[name]), tf.float64) for name in names]
        means = ranks.reduce_together(own, Average, "strategy.logs")
        return {**result, **dict(zip(names, means, strict=True))}

    return _get_metrics_result_or_logs


def _is_number(value: Any) -> bool:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return False
    return tensor.shape.rank == 0 and (tensor.dtype.is_floating or tensor.dtype.is_integer)


def _shuffling_alike(original: Callable) -> Callable:
    @functools.wraps(original)
    def init(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        ranks: Any = getattr(getattr(distribute_strategy, "extended", None), "ranks", None)
        several = ranks is not None and ranks.size > 1
        with shuffling.alike(ranks) if several and kwargs.get("shuffle") else nullcontext():
            original(self, distribute_strategy, *args, **kwargs)

    return init


# predict


def _gathering(original: Callable) -> Callable:
    @functools.wraps(original)
    def make_predict_function(self: Any, force: bool = False) -> Any:
        ranks = _ranks_of(self)
        if ranks is None or (self.predict_function is not None and not force):
            return original(self, force)
        original(self, force)
        local = self.predict_function

        def gathered(data: Any) -> Any:
            return tf.nest.map_structure(
                lambda output: ranks.gather(output, 0, "strategy.predict"), local(data)
            )

        def predict_function(data: Any) -> Any:
            if not getattr(self, "_hvd_predicts", False):
                return local(data)  # predict_on_batch, whose data have not been divided
            # With steps_per_execution there are several steps, and each has rows of all ranks.
            steps = [gathered([step]) for step in data]
            return tf.nest.map_structure(lambda *outputs: tf.concat(outputs, 0), *steps)

        self.predict_function = predict_function
        return predict_function

    return make_predict_function


# Callbacks


def _on_first_rank(original: Callable, wait: bool = False) -> Callable:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        ranks = _ranks_of(getattr(self, "model", None))
        result = None
        if ranks is None or ranks.is_first:
            result = original(self, *args, **kwargs)
        if wait and ranks is not None:
            ranks.barrier()
        return result

    return method
