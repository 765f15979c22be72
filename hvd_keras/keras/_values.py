"""Values of variables, in eager code and in the session of Keras 2's ``tf.compat.v1`` graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras.keras import _versions

__all__ = ["in_graph", "read", "write"]


def in_graph() -> bool:
    """Returns whether models are built and run in a ``tf.compat.v1`` graph, which Keras 2 can."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def read(variables: Sequence[Any]) -> list[np.ndarray]:
    """Returns the values that the variables have now."""
    if in_graph():
        return [np.asarray(v) for v in _versions.tf_keras().backend.batch_get_value(variables)]
    return [np.asarray(variable.numpy()) for variable in variables]


def write(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assigns the values."""
    if in_graph():
        _versions.tf_keras().backend.batch_set_value(list(zip(variables, values, strict=True)))
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
