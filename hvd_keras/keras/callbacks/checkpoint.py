"""RankZeroModelCheckpoint: rank 0 saves the model, and never half."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import world
from hvd_keras.keras import saving

__all__ = ["RankZeroModelCheckpoint"]


class RankZeroModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """``keras.callbacks.ModelCheckpoint`` that writes on rank 0 only, and atomically.

    All ranks have the same weights, so one file is enough. It is written beside its final place
    and then moved there: if the process dies, or the disk is full, the file of the last time is
    still whole. Use it on all ranks, after ``MetricAverageCallback``, so that the monitored value
    is the one over all ranks. The ranks exchange nothing for it; the others wait for rank 0 in
    their next step.

    If writing fails, rank 0 raises and its ``fit`` ends; the launcher or the next collective ends
    the other ranks.

    Args: those of ``keras.callbacks.ModelCheckpoint``; ``filepath`` may end in ``.keras``, ``.h5``
        (legacy) or ``.weights.h5``.

    Raises (from ``fit``, on rank 0):
        OSError: the file cannot be written; the message names it and the space that is left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_active = world.rank() == 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if self._is_active:
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._is_active:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if self._is_active:
            super().on_epoch_end(epoch, logs)

    @property
    def model(self) -> Any:
        """The model, with a ``save`` and ``save_weights`` that are atomic."""
        model = super().model
        return None if model is None else _SavedAtomically(model)


class _SavedAtomically:
    """Stands for a model; ModelCheckpoint saves through it."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def save(self, filepath: str, **kwargs: Any) -> None:
        saving.save_model(self._model, filepath, **kwargs)

    def save_weights(self, filepath: str, **kwargs: Any) -> None:
        saving.save_weights(self._model, filepath, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
