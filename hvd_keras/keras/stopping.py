"""Ending ``fit`` on all ranks together.

``EarlyStopping`` and the like set ``model.stop_training`` from one rank's values. If the ranks did
not agree on it, some would go on and wait for those that have stopped. They agree after all
callbacks of an epoch's end have had their say, for which no callback is in the right place, so the
list of callbacks does it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras import world
from hvd_keras.collectives import Max, allreduce
from hvd_keras.keras._distributed import distributed_in

__all__ = ["install"]


@functools.cache
def install(cls: Any = keras.callbacks.CallbackList) -> None:
    """Changes Keras's list of callbacks, once. Without a distributed optimizer nothing changes.

    Args:
        cls: the class; another one for Keras 2.
    """
    cls.on_epoch_end = _agreeing(cls.on_epoch_end)


def _agreeing(original: Callable) -> Callable:
    @functools.wraps(original)
    def on_epoch_end(self: Any, epoch: int, logs: dict | None = None) -> None:
        original(self, epoch, logs)
        model: Any = getattr(self, "model", None)
        optimizer = distributed_in(getattr(model, "optimizer", None))
        if optimizer is None or not world.is_initialized() or optimizer.process_set.size() == 1:
            return
        stop = allreduce(
            int(bool(model.stop_training)),
            op=Max,
            name="fit.stop_training",
            process_set=optimizer.process_set,
        )
        model.stop_training = bool(stop)

    return on_epoch_end
