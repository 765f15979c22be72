"""LearningRateWarmupCallback: from the rate of one process to the rate of all."""

from __future__ import annotations

from hvd_keras import world
from hvd_keras.keras.callbacks.learning_rate import LearningRateScheduleCallback

__all__ = ["LearningRateWarmupCallback"]


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` in the first epochs.

    ``size`` ranks take steps on batches ``size`` times as large, so the rate is scaled by ``size``
    (``initial_lr`` is the scaled one); large rates disturb the first epochs, so it grows to there,
    batch by batch and linearly (Goyal et al., 2017). During batch b of epoch e of s steps it is

        initial_lr * (1 + (size - 1) * (e + (b + 1) / s) / warmup_epochs) / size

    and exactly ``initial_lr`` in the last batch of the last warm-up epoch. After that the callback
    leaves the rate alone.

    Args:
        initial_lr: the rate to reach, scaled by the number of ranks.
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: see LearningRateScheduleCallback.
        verbose: 1: rank 0 prints a line when the warm-up has ended.

    Raises (from ``fit``): see LearningRateScheduleCallback.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warmup,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _warmup(self, position: float) -> float:
        size = world.size()
        return (1 + (size - 1) * position / self.warmup_epochs) / size

    def _position(self, epoch: int, batch: int) -> float:
        return epoch + (batch + 1) / self._steps

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if epoch == self.warmup_epochs - 1:
            # With steps_per_execution > 1 no callback runs before the last batch.
            self._set_last_rate(self.warmup_epochs)
            if self.verbose and world.rank() == 0:
                print(f"\nEpoch {epoch + 1}: learning rate warm-up finished at {self._rate():g}.")
        super().on_epoch_end(epoch, logs)
