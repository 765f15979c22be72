"""Noticing gradients that are about to be reduced a second time.

A ``DistributedGradientTape`` reduces, and so does a ``DistributedOptimizer``. With both, sums
become size times too large, without any other sign. The tape marks what it returns; in a graph it
is also recognized behind a few more operations, like those of clipping.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_keras.op_calls import Average, ReduceOp

__all__ = ["TAPE_NAME", "check_not_reduced", "mark_reduced"]

# The tape's collectives have it in their names.
TAPE_NAME = "tape_gradients"

_MARK = "_hvd_reduced"
_OPERATIONS = 200  # looked at for each optimizer, before the search is given up


def mark_reduced(gradients: Iterable[Any]) -> None:
    """Notes that a tape has reduced these tensors."""
    for gradient in gradients:
        if gradient is not None:
            setattr(gradient, _MARK, True)


def check_not_reduced(gradients: Iterable[Any], op: ReduceOp) -> None:
    """Tells the user if a tape has reduced any of the gradients that ``op`` is to reduce.

    Raises:
        ValueError: the result would be wrong. A second average costs time only, so it is a warning.
    """
    tensors = [gradient for gradient in gradients if gradient is not None]
    if not any(getattr(tensor, _MARK, False) for tensor in tensors) and not _descends(tensors):
        return
    message = (
        "these gradients have been reduced by a DistributedGradientTape, and a "
        "DistributedOptimizer reduces them again; use one of the two, and a plain tf.GradientTape "
        "or optimizer for the other"
    )
    if op is not Average:
        raise ValueError(f"{message} ({op!r} of what is reduced already is a wrong number)")
    warnings.warn(message[0].upper() + message[1:], stacklevel=2)


def _descends(gradients: list[Any]) -> bool:
    """Whether a tape's collective is among the nearest operations that the gradients come from."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    waiting = [v.op for v in values if tf.is_symbolic_tensor(v)]
    seen: set[str] = set()
    while waiting and len(seen) < _OPERATIONS:
        operation = waiting.pop(0)
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type.startswith("Hvd"):
            if TAPE_NAME in operation.get_attr("tensor_name").decode():
                return True
            continue
        waiting.extend(tensor.op for tensor in operation.inputs)
    return False
