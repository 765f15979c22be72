"""LearningRateScheduleCallback: the learning rate as a function of the epoch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import tensorflow as tf

from hvd_keras.keras import _peers, _values, _versions
from hvd_keras.keras.callbacks._base import Callback

__all__ = ["LearningRateScheduleCallback"]


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to ``initial_lr * multiplier`` from ``start_epoch`` to ``end_epoch``.

    The rate depends on the epoch (and batch) alone, so a run resumed at epoch k
    (``fit(initial_epoch=k)``) has the rate of one that was not interrupted. Outside its epochs the
    callback leaves the rate alone: it is the optimizer's, as restored from the checkpoint. Only
    where nothing was restored (the optimizer has made no step yet) and training begins after
    ``end_epoch`` does it set the rate with which these epochs would have ended.

    Several of these callbacks, each for other epochs, may be used in one ``fit``. ``logs`` gets the
    rate as ``lr`` and as ``learning_rate`` at the end of each epoch.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch, or a constant c, which stands for
            ``c ** (epoch - start_epoch)``.
        start_epoch: the first epoch (from 0) in which the rate is set.
        end_epoch: the first epoch in which it is no longer set; None for never.
        staircase: True: the rate changes when an epoch begins, and ``multiplier`` gets whole
            numbers. False: it changes with each batch (each execution, with
            ``steps_per_execution``), and ``multiplier`` gets fractions of an epoch.
        momentum_correction: multiply SGD's and RMSprop's momentum *buffers*, which hold the old
            rate, by new rate / old rate whenever the rate changes. This is the momentum correction
            of Goyal et al. (2017), section 3; other optimizers keep the rate out of their moments
            and need none.
        steps_per_epoch: batches per epoch, for ``staircase=False``; None to ask Keras. If ranks
            differ the largest number counts, as all ranks must have the same rate.

    Raises (from ``fit``):
        ValueError: the optimizer's rate is a schedule or otherwise cannot be set, the steps per
            epoch are needed and not known, or ranks have different settings.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError(f"{type(self).__name__}: initial_lr is missing, expected a number")
        self.initial_lr = float(initial_lr)
        self.multiplier = _as_function(multiplier, start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._steps = 0
        self._epoch: int | None = None
        self._momentum: _MomentumBuffers | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._epoch = None
        optimizer, _ = self._optimizer()
        self._momentum = _MomentumBuffers(optimizer) if self.momentum_correction else None
        self._steps = self._agreed_steps()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        resumed, self._epoch = self._epoch is None, epoch
        if self._is_active(epoch):
            self._set_rate(self._position(epoch, 0))
        elif resumed and self.end_epoch is not None and epoch >= self.end_epoch:
            self._catch_up(self.end_epoch)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        # The first batch always: a callback for earlier epochs may have caught up after this one.
        epoch = self._epoch
        if epoch is not None and self._is_active(epoch) and (batch == 0 or not self.staircase):
            self._set_rate(self._position(epoch, batch))

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if logs is not None:
            logs["lr"] = logs["learning_rate"] = self._rate()

    def _optimizer(self) -> tuple[Any, Any]:
        return _peers.settable_learning_rate(self.model.optimizer, type(self).__name__)

    def _agreed_steps(self) -> int:
        """Ranks with different rates would end with different weights: compare what they set."""
        steps = self.steps_per_epoch or _steps(self.params or {})
        window = (self.initial_lr, self.start_epoch, self.end_epoch, self.staircase)
        peers = _peers.gather((steps, window), "learning_rate")
        if len({window for _, window in peers}) > 1:
            raise ValueError(
                f"{type(self).__name__}: ranks have different settings (initial_lr, start_epoch, "
                f"end_epoch, staircase): {_peers.by_rank(window for _, window in peers)}"
            )
        known = [steps for steps, _ in peers if steps]
        if not self.staircase and len(known) < len(peers):
            raise ValueError(
                f"{type(self).__name__} changes the rate with each batch, but the number of steps "
                "per epoch is not known; pass steps_per_epoch"
            )
        return max(known, default=0)

    def _is_active(self, epoch: int) -> bool:
        return epoch >= self.start_epoch and not self._is_past(epoch)

    def _is_past(self, epoch: int) -> bool:
        return self.end_epoch is not None and epoch >= self.end_epoch

    def _position(self, epoch: int, batch: int) -> float:
        """What ``multiplier`` gets at a batch."""
        return epoch if self.staircase else epoch + batch / self._steps

    def _set_last_rate(self, end_epoch: int) -> None:
        """Sets the rate of the last batch before ``end_epoch``."""
        self._set_rate(self._position(end_epoch - 1, 0 if self.staircase else self._steps - 1))

    def _rate(self) -> float:
        return float(_values.read([self._optimizer()[1]])[0])

    def _set_rate(self, position: float) -> None:
        _, variable = self._optimizer()
        old = self._rate()
        _values.write([variable], [self.initial_lr * self.multiplier(position)])
        new = self._rate()
        if self._momentum is not None and new != old:
            self._momentum.rescale(old, new)

    def _catch_up(self, end_epoch: int) -> None:
        """Sets the rate these epochs end with, unless it was restored, or a later one set."""
        optimizer, _ = self._optimizer()
        is_restored = int(_values.read([optimizer.iterations])[0]) > 0
        if not is_restored and end_epoch > max(self.start_epoch, _caught_up.get(optimizer, 0)):
            _caught_up[optimizer] = end_epoch
            self._set_last_rate(end_epoch)


# The end_epoch up to which the rate of an optimizer has caught up.
_caught_up: MutableMapping[Any, int] = weakref.WeakKeyDictionary()


def _as_function(multiplier: float | Callable[[float], float], start: int) -> Callable:
    if callable(multiplier):
        return multiplier
    constant = float(multiplier)
    return lambda epoch: constant ** (epoch - start)


def _steps(params: dict[str, Any]) -> int | None:
    """Batches per epoch, as Keras gives it, in a graph of Keras 2 by the numbers of samples."""
    if not params.get("steps") and params.get("samples") and params.get("batch_size"):
        return -(-params["samples"] // params["batch_size"])
    return params.get("steps")


class _MomentumBuffers:
    """The momentum buffers of SGD and RMSprop, in which the learning rate is a factor."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._scale = tf.function(self._multiply)

    def _buffers(self) -> list[Any]:
        optimizer = self._optimizer
        if isinstance(optimizer, _versions.both("optimizers.SGD")):
            buffers = getattr(optimizer, "momentums", None)
        elif isinstance(optimizer, _versions.both("optimizers.RMSprop")):
            buffers = getattr(optimizer, "_momentums", None)
        elif isinstance(
            optimizer,
            _versions.both("optimizers.legacy.SGD") + _versions.both("optimizers.legacy.RMSprop"),
        ):
            slots = optimizer._slots.values() if optimizer.get_slot_names() else ()
            buffers = [slot["momentum"] for slot in slots if "momentum" in slot]
        else:
            buffers = None
        return [buffer for buffer in buffers or () if buffer is not None]

    def _multiply(self, factor: tf.Tensor) -> None:
        for buffer in self._buffers():
            buffer.assign(tf.convert_to_tensor(buffer) * tf.cast(factor, buffer.dtype))

    def rescale(self, old: float, new: float) -> None:
        if not (_versions.is_built(self._optimizer) and self._buffers() and old and new):
            return
        if _values.in_graph():
            buffers = self._buffers()
            _values.write(buffers, [value * (new / old) for value in _values.read(buffers)])
        else:
            self._scale(tf.constant(new / old, tf.float32))
