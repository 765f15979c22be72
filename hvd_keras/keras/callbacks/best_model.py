"""BestModelCheckpoint: the best model of a training, for an estimator that says where it goes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hvd_keras.keras import _versions
from hvd_keras.keras.callbacks import checkpoint

__all__ = ["BestModelCheckpoint", "class_for"]

if TYPE_CHECKING:
    _RankZeroModelCheckpoint: Any = object
else:
    _RankZeroModelCheckpoint = object  # that of the Keras in question is the next base


class _Best(_RankZeroModelCheckpoint):
    """``RankZeroModelCheckpoint(save_best_only=True)`` whose ``filepath`` is set later.

    Whoever runs the training, an estimator for instance, sets it before ``fit``.

    Args: as for ``keras.callbacks.ModelCheckpoint``.

    Attributes:
        filepath: where rank 0 saves the model; None until it is set.

    Raises (from ``fit``, on every rank):
        ValueError: ``filepath`` has not been set, or has another ending than ``save_weights_only``
            asks for.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            "later.weights.h5" if save_weights_only else "later.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        super().on_train_begin(logs)
        endings = (".weights.h5",) if self.save_weights_only else (".keras", ".h5")
        path = None if self.filepath is None else str(self.filepath)
        if path is None or not path.endswith(endings):
            raise ValueError(
                f"BestModelCheckpoint: filepath is {path!r}; expected a path that ends in "
                f"{' or '.join(endings)}. Set callback.filepath before fit(), or use "
                "RankZeroModelCheckpoint(path, save_best_only=True)"
            )
        self.filepath = path


@functools.cache
def class_for(keras: Any) -> Any:
    """Returns the class for a Keras module."""
    attributes = {"__doc__": _Best.__doc__, "__module__": __name__}
    return type("BestModelCheckpoint", (_Best, checkpoint.class_for(keras)), attributes)


BestModelCheckpoint = class_for(_versions.default_keras())
