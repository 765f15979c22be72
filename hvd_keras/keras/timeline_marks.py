"""Marks of the training's steps and epochs in the timeline.

No callback has to be added: Keras's list of callbacks says when a step begins and ends. Where no
timeline is written, each of these says so after a look at one flag.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from hvd_keras import _library, world

__all__ = ["install"]


@functools.cache
def install(keras: Any) -> None:
    """Changes the ``callbacks.CallbackList`` of a Keras module, once."""
    cls = keras.callbacks.CallbackList
    cls.on_epoch_begin = _opening(cls.on_epoch_begin, "_hvd_epoch_began")
    cls.on_epoch_end = _closing(cls.on_epoch_end, "_hvd_epoch_began", True)
    # Called before the others that change these: a step ends before the callbacks at its end.
    cls.on_train_batch_begin = _opening(cls.on_train_batch_begin, "_hvd_step_began")
    cls.on_train_batch_end = _closing(cls.on_train_batch_end, "_hvd_step_began", False)


def _is_on() -> bool:
    return world.is_initialized() and bool(_library.core.timeline_is_on())


def _opening(original: Callable, began: str) -> Callable:
    @functools.wraps(original)
    def on_begin(self: Any, number: int, logs: dict | None = None) -> None:
        original(self, number, logs)
        setattr(self, began, time.monotonic_ns() if _is_on() else None)

    return on_begin


def _closing(original: Callable, began: str, is_epoch: bool) -> Callable:
    @functools.wraps(original)
    def on_end(self: Any, number: int, logs: dict | None = None) -> None:
        begin_ns = getattr(self, began, None)
        # An epoch has the callbacks at its end in it; a step has not.
        if is_epoch:
            original(self, number, logs)
        if begin_ns is not None and _is_on():
            setattr(self, began, None)
            _library.core.mark_timeline(is_epoch, number, begin_ns, time.monotonic_ns())
        if not is_epoch:
            original(self, number, logs)

    return on_end
