"""What has to be changed in Keras itself, for each of the two that a program uses."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras.keras import _versions, epochs, loss_scale, progress_bar, timeline_marks, unreduced

__all__ = ["install"]


def install(module: Any) -> None:
    """Changes a Keras module (Keras 3, or ``tf_keras``), once."""
    if module is keras:
        loss_scale.install()
    epochs.install(module)
    progress_bar.install(module)
    unreduced.install(module)
    timeline_marks.install(module)


def install_all() -> None:
    """Changes Keras 3, and Keras 2 if the program uses it."""
    for module in (keras, _versions.default_keras(), _versions.tf_keras()):
        if module is not None:
            install(module)
