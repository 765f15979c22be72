"""LogCallback: the training's progress, in the program that started it."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import world
from hvd_keras.runner.driver_log import log_to_driver

__all__ = ["LogCallback"]


class LogCallback(keras.callbacks.Callback):
    """Sends rank 0's metrics to the driver at the end of each epoch.

    Args:
        per_batch_log: also at the end of each batch.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._epoch = epoch
        self._send(f"Epoch {epoch} begins.")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.per_batch_log:
            self._send(f"Epoch {self._epoch}, batch {batch}: {_text(logs)}")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._send(f"Epoch {epoch} ends: {_text(logs)}")

    def _send(self, text: str) -> None:
        if not world.is_initialized() or world.rank() == 0:
            log_to_driver(text)


def _text(logs: dict[str, Any] | None) -> str:
    return ", ".join(f"{name}: {float(value):.6g}" for name, value in (logs or {}).items())
