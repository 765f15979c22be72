"""RankZero: runs any callback on rank 0 only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from hvd_keras import world
from hvd_keras.keras import _versions
from hvd_keras.keras.callbacks._base import Callback
from hvd_keras.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from hvd_keras.keras.callbacks.learning_rate import LearningRateScheduleCallback
from hvd_keras.keras.callbacks.metric_average import MetricAverageCallback
from hvd_keras.keras.callbacks.stats import StatsCallback

__all__ = ["RankZero"]

_HOOKS = tuple(name for name in dir(Callback) if name.startswith("on_"))

_ON_ALL_RANKS = "Use it on all ranks, without RankZero, after MetricAverageCallback"
_OWN_FOLDER = "Use it on all ranks, each with a folder of its own: f'backup/{hvd.rank()}'"

# What they do must be done on all ranks. Keras's own are named, since there are two Keras.
_FOR_ALL_RANKS: dict[str, tuple[Any, ...]] = {
    f"it exchanges data with the other ranks. {_ON_ALL_RANKS}": (
        BroadcastGlobalVariablesCallback,
        LearningRateScheduleCallback,
        MetricAverageCallback,
        StatsCallback,
    ),
    f"it stops the training, and the other ranks would wait for rank 0. {_ON_ALL_RANKS}": (
        "EarlyStopping",
        "TerminateOnNaN",
    ),
    f"it changes how rank 0 trains, and the ranks' weights would differ. {_ON_ALL_RANKS}": (
        "LearningRateScheduler",
        "ReduceLROnPlateau",
        "SwapEMAWeights",
    ),
    f"only rank 0 would resume where it was. {_OWN_FOLDER}": ("BackupAndRestore",),
}


class RankZero(Callback):
    """Runs ``callback`` on rank 0 and nothing on the others: ``RankZero(TensorBoard("logs"))``.

    For callbacks that watch: loggers, writers, progress. One that stops the training or changes
    how it goes must run on all ranks, after ``MetricAverageCallback``, so that all decide alike;
    such callbacks are refused.

    Where ``callback`` does something costly, like evaluating, the other ranks wait for rank 0 in
    their next step. Its attributes can be read through the wrapper, on every rank.

    Args:
        callback: the callback; on ranks other than 0 none of its methods is ever called.

    Attributes:
        callback: the same.

    Raises:
        TypeError: ``callback`` is no ``Callback`` of Keras.
        ValueError: it is one that must run on all ranks.
        RuntimeError (from ``fit``, on rank 0): it has asked to stop the training.
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        if not isinstance(callback, _versions.both("callbacks.Callback")):
            raise TypeError(f"RankZero expects a keras.callbacks.Callback, got {callback!r}")
        for reason, classes in _FOR_ALL_RANKS.items():
            if isinstance(callback, tuple(_classes(classes))):
                raise ValueError(f"RankZero({type(callback).__name__}): {reason}")
        self.callback = callback
        self._is_active = world.rank() == 0
        if self._is_active:
            self._forward_hooks()

    def _forward_hooks(self) -> None:
        """Takes over the hooks that the callback has, and only those.

        Keras looks at which are overridden to decide whether batches may end in a thread.
        """
        self.async_safe = getattr(self.callback, "async_safe", False)
        for name in _HOOKS:
            hook = getattr(self.callback, name)
            defaults = [getattr(cls, name) for cls in _versions.both("callbacks.Callback")]
            if getattr(hook, "__func__", hook) not in defaults:
                setattr(self, name, self._forward(name, hook))

    def _forward(self, name: str, hook: Callable) -> Callable:
        @functools.wraps(hook)
        def call(*args: Any, **kwargs: Any) -> None:
            was_stopping = getattr(self.model, "stop_training", False)
            hook(*args, **kwargs)
            if getattr(self.model, "stop_training", False) and not was_stopping:
                raise RuntimeError(
                    f"RankZero: {type(self.callback).__name__}.{name} has set "
                    "model.stop_training on rank 0 only, and the other ranks would wait for it. "
                    "Use this callback on all ranks, after MetricAverageCallback"
                )

        return call

    def set_params(self, params: dict) -> None:
        super().set_params(params)
        if self._is_active:
            self.callback.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self._is_active:
            self.callback.set_model(model)

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not found here; "callback" itself is not, before __init__.
        if name == "callback" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.callback, name)


def _classes(named: tuple[Any, ...]) -> Iterator[Any]:
    for item in named:
        if isinstance(item, str):
            yield from _versions.both(f"callbacks.{item}")
        else:
            yield item
