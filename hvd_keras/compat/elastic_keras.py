"""Elastic state and callbacks for ``model.fit``."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat.elastic_tensorflow import TensorFlowKerasState
from hvd_keras.keras.callbacks._base import Callback

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class KerasState(TensorFlowKerasState):
    """A state of a Keras model, its optimizer, and of Python objects.

    Args:
        model: a built model.
        optimizer: None for the one that the model was compiled with.
        **kwargs: the attributes and their first values.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, None, **kwargs)


class CommitStateCallback(Callback):
    """Commits the state every ``batches_per_commit`` batches, and after each epoch.

    Args:
        state: what to commit.
        batches_per_commit: a number of batches.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._remaining = batches_per_commit

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._remaining -= 1
        if self._remaining <= 0:
            self.state.commit()
            self._remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Keeps the number of batches that the current epoch has had in ``state.batch``.

    Args:
        state: an object with ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Keeps the number of epochs that are done in ``state.epoch``.

    Args:
        state: an object with ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before = 0
        self._first: int | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._before, self._first = self.state.epoch, None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # fit() counts from its initial_epoch, which scripts give as 0 or as state.epoch.
        if self._first is None:
            self._first = epoch

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.state.epoch = self._before + epoch - (self._first or 0) + 1
