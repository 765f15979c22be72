"""RankZeroModelCheckpoint: rank 0 saves the model, and never half."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from hvd_keras import world
from hvd_keras.keras import _versions, saving

__all__ = ["RankZeroModelCheckpoint", "class_for"]

if TYPE_CHECKING:
    _ModelCheckpoint: Any = object
else:
    _ModelCheckpoint = object  # that of the Keras in question is the next base


class _RankZero(_ModelCheckpoint):
    """``keras.callbacks.ModelCheckpoint`` that writes on rank 0 only, and atomically.

    It is the one of the Keras that ``tf.keras`` is; ``hvd_keras.tf_keras`` has that of Keras 2.

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

    def __init__(self, filepath: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        super().__init__(filepath, *args, **kwargs)
        self._is_active = world.rank() == 0
        # Keras 2 has no look at the name; what it writes otherwise is a folder.
        ending = ".weights.h5" if self.save_weights_only else (".keras", ".h5")
        if not self.filepath.endswith(ending):
            raise ValueError(
                f"RankZeroModelCheckpoint: filepath={self.filepath!r}; expected a name that ends "
                "in .keras or .h5, or, with save_weights_only, in .weights.h5"
            )

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if self._is_active:
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._is_active:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if self._is_active:
            super().on_epoch_end(epoch, logs)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._hvd_model = _SavedAtomically(model)

    @property
    def model(self) -> Any:
        """The model, with a ``save`` and ``save_weights`` that are atomic."""
        return getattr(self, "_hvd_model", None)

    @model.setter
    def model(self, model: Any) -> None:
        """Keras 2 assigns it; see ``set_model``."""


@functools.cache
def class_for(keras: Any) -> Any:
    """Returns the class for a Keras module."""
    base = keras.callbacks.ModelCheckpoint
    attributes = {"__doc__": _RankZero.__doc__, "__module__": __name__}
    return type("RankZeroModelCheckpoint", (_RankZero, base), attributes)


RankZeroModelCheckpoint = class_for(_versions.default_keras())


class _SavedAtomically:
    """Stands for a model; ModelCheckpoint saves through it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def save(self, filepath: str, **kwargs: Any) -> None:
        saving.save_model(self._model, filepath, **kwargs)

    def save_weights(self, filepath: str, **kwargs: Any) -> None:
        saving.save_weights(self._model, filepath, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
