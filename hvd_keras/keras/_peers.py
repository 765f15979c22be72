"""What the callbacks share: telling each other, and looking into an optimizer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import keras
import tensorflow as tf

from hvd_keras import objects
from hvd_keras.keras import _versions

__all__ = ["by_rank", "gather", "is_replicated", "optimizers_of", "settable_learning_rate"]


def gather(value: Any, name: str) -> list[Any]:
    """Returns every rank's ``value`` (anything that pickles), in rank order; all must call it."""
    return objects.allgather_object(value, name=f"hvd.callbacks.{name}")


def by_rank(values: Iterable[Hashable]) -> str:
    """Describes the values of all ranks in one line: ``"4 on ranks 0, 2; 5 on rank 1"``."""
    ranks: dict[Hashable, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(
        f"{value} on rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"
        for value, some in ranks.items()
    )


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizer of ``compile`` and those that the model keeps as attributes itself."""
    classes = _versions.optimizer_classes()
    candidates = [getattr(model, "optimizer", None), *vars(model).values()]
    found = {id(v): v for v in candidates if isinstance(v, classes)}
    return list(found.values())


def is_replicated(model: Any) -> bool:
    """Whether a tf.distribute strategy has several replicas of the model."""
    strategy = getattr(model, "distribute_strategy", None)
    return getattr(strategy, "num_replicas_in_sync", 1) > 1


def settable_learning_rate(optimizer: Any, user: str) -> tuple[Any, Any]:
    """Returns the innermost optimizer and the variable that holds its learning rate.

    Args:
        optimizer: a Keras optimizer, maybe inside LossScaleOptimizer.
        user: the name of what wants to set the rate, for the message.

    Raises:
        ValueError: there is no such variable: the model is not compiled, the rate is a schedule or
            another callable, or there are several optimizers.
    """
    optimizer = _versions.innermost(optimizer)
    if not isinstance(optimizer, _versions.optimizer_classes()):
        raise ValueError(
            f"{user} needs a model compiled with a Keras optimizer, found {optimizer!r}"
        )
    if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
        raise ValueError(f"{user} sets one learning rate, but MultiOptimizer has several")
    rate = optimizer.learning_rate
    # In Keras 2 a schedule may show as the variable that holds its last value.
    given = getattr(optimizer, "_learning_rate", rate)
    if not isinstance(rate, (keras.Variable, tf.Variable)) or not _is_number(given):
        raise ValueError(
            f"{user} sets the optimizer's learning rate, which must be a number, but "
            f"{type(optimizer).__name__} was made with a {type(given).__name__}. Use one of the "
            f"two: {type(optimizer).__name__}(learning_rate=<float>), or no callback"
        )
    return optimizer, rate


def _is_number(given: Any) -> bool:
    return not isinstance(given, _versions.both("optimizers.schedules.LearningRateSchedule"))
