"""Telling a user of several ranks whose ``fit`` trains each rank alone.

With a plain optimizer nothing fails: every rank trains a model of its own, on its own data, and
rank 0 saves its one. A model whose gradients a ``train_step`` of its own reduces is recognized by
the collectives that run during its first epoch.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from hvd_keras import _library, world
from hvd_keras.keras import _peers, _versions
from hvd_keras.keras._distributed import is_distributed

__all__ = ["install"]


@functools.cache
def install(keras: Any) -> None:
    """Changes the ``callbacks.CallbackList`` of a Keras module, once. With one rank nothing
    changes."""
    cls = keras.callbacks.CallbackList
    cls.on_train_begin = _looking_at_the_optimizer(cls.on_train_begin)
    cls.on_train_batch_end = _counting(cls.on_train_batch_end)


def _looking_at_the_optimizer(original: Callable) -> Callable:
    @functools.wraps(original)
    def on_train_begin(self: Any, logs: dict | None = None) -> None:
        self._hvd_collectives = None
        self._hvd_is_unsure = False
        model = getattr(self, "model", None)
        if model is not None and _may_train_alone(model):
            if type(model).train_step in [cls.train_step for cls in _versions.both("Model")]:
                _warn(model)
            else:
                self._hvd_is_unsure = True
        original(self, logs)

    return on_train_begin


def _counting(original: Callable) -> Callable:
    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: dict | None = None) -> None:
        if getattr(self, "_hvd_is_unsure", False):
            _count(self, batch)
        original(self, batch, logs)

    return on_train_batch_end


def _count(callback_list: Any, batch: int) -> None:
    done = _library.core.stats()["collectives"]
    if callback_list._hvd_collectives is None:
        # The first step does not count: the variables are broadcast in it.
        callback_list._hvd_collectives = done
        return
    if done > callback_list._hvd_collectives:
        callback_list._hvd_is_unsure = False
    elif batch + 1 >= ((callback_list.params or {}).get("steps") or 0):
        callback_list._hvd_is_unsure = False
        _warn(callback_list.model)


def _may_train_alone(model: Any) -> bool:
    if not world.is_initialized() or world.size() == 1:
        return False
    if _peers.is_replicated(model):
        return False
    optimizers = _peers.optimizers_of(model)
    return bool(optimizers) and not any(map(is_distributed, optimizers))


def _warn(model: Any) -> None:
    warnings.warn(
        f"fit() trains the model {model.name!r} on rank {world.rank()} alone: there are "
        f"{world.size()} ranks, but its optimizer ({type(model.optimizer).__name__}) is not "
        "distributed, and no gradient is exchanged. Compile the model with "
        "hvd.DistributedOptimizer(optimizer), unless each rank is to have a model of its own",
        stacklevel=3,
    )
