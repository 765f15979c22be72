"""The order in which a graph runs its collectives.

TensorFlow runs the side effects of a ``tf.function`` one after another, in the order of the trace.
Collectives do not need that, since ranks match them by name, and it would keep each from starting
before the one before it has ended.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["run_independently"]


def run_independently(outputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Takes the operation of ``outputs`` out of that order, and returns ``outputs``.

    In the body of a loop the order stays: there it keeps the iterations apart.
    """
    if outputs and not tf.executing_eagerly():
        graph = outputs[0].graph
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None and not _in_while_body(graph):
            manager.run_independently(outputs[0].op)
    return outputs


def _in_while_body(graph: Any) -> bool:
    while graph is not None:
        if type(graph).__name__ == "WhileBodyFuncGraph":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
