"""How a graph runs its collectives: in which order, and where it cannot.

TensorFlow runs the side effects of a ``tf.function`` one after another, in the order of the trace.
Collectives do not need that, since ranks match them by name, and it would keep each from starting
before the one before it has ended.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from hvd_keras import _library
from hvd_keras.naming import node_name

__all__ = [
    "call_attributes",
    "check_place",
    "is_compiled",
    "outside_of_clusters",
    "run_independently",
]

_LOOPS = {"WhileBodyFuncGraph", "WhileContext"}
_XLA = "XLAControlFlowContext"


_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_of_clusters(function: _Function) -> _Function:
    """Decorates what makes operations: XLA's auto-clustering leaves these alone.

    It compiles parts of graphs that nobody has asked it to compile (``TF_XLA_FLAGS``), in which
    shapes that differ between ranks would stop working.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return function(*args, **kwargs)
        with tf.xla.experimental.jit_scope(compile_ops=False):
            return function(*args, **kwargs)

    return cast(_Function, wrapped)


def run_independently(outputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Takes the operation of ``outputs`` out of that order, and returns ``outputs``.

    It still runs before the function returns, and, in a loop, before the next pass begins.
    """
    if outputs and not tf.executing_eagerly():
        manager = getattr(outputs[0].graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(outputs[0].op)
    return outputs


def check_place(name: str) -> None:
    """Raises NotImplementedError where a graph is built in which a collective cannot work.

    - In a function that XLA is to compile, where this TensorFlow does not allow it.
    - In a loop in a loop of a TF1 graph. The passes of the outer loop run side by side there, in an
      order that differs between ranks, and nothing tells which passes belong together.
    """
    if tf.executing_eagerly():
        return
    graph: Any = tf.compat.v1.get_default_graph()
    contexts = list(_contexts(graph))
    if _XLA in contexts and (reason := _library.no_xla()):
        raise NotImplementedError(
            f"the collective '{name}' is in a function with jit_compile=True, but {reason}; leave "
            "jit_compile out, or, in Keras, call model.compile(..., jit_compile=False)"
        )
    if _XLA in contexts:
        _keep_calls_in_order(graph)
    ordered = getattr(graph, "experimental_acd_manager", None) is not None
    if not ordered and sum(context in _LOOPS for context in contexts) > 1:
        raise NotImplementedError(
            f"the collective '{name}' is in a tf.while_loop within another one, in a "
            "tf.compat.v1 graph, where the order of their passes is not defined; put the loops "
            "into a tf.function, which defines it"
        )


# Graphs that the variable keeps in order.
_in_order: weakref.WeakSet[tf.Graph] = weakref.WeakSet()


@functools.cache
def _order_variable() -> tf.Variable:
    with tf.init_scope(), tf.device("CPU:0"):
        # Of this class, not tf.Variable: a function would take part in how that is made.
        return resource_variable_ops.ResourceVariable(0, trainable=False, dtype=tf.int32)


def _keep_calls_in_order(graph: Any) -> None:
    """Makes calls of a compiled function, which has ``graph``, run one after another.

    TensorFlow lets a function that calls a compiled one twice run the two at once, unless they
    change the same variable. Their collectives have the same names, so the ranks match them by
    their order.
    """
    if graph not in _in_order and tf.compat.v1.executing_eagerly_outside_functions():
        _in_order.add(graph)
        _order_variable().assign_add(1, read_value=False)


def is_compiled() -> bool:
    """Returns whether the graph that is being built is to be compiled by XLA.

    False also where that is not known: in a ``tf.function`` that was traced before a function with
    ``jit_compile=True`` has called it.
    """
    return not tf.executing_eagerly() and _XLA in _contexts(tf.compat.v1.get_default_graph())


def call_attributes(name: str, process_set: int, node: str | None = None) -> dict[str, Any]:
    """Returns the arguments that the operations of all collectives have.

    Args:
        name: what the ranks match; used as it is.
        node: the name of the graph node, if not the same.
    """
    return {
        "tensor_name": name,
        "process_set": process_set,
        "numbered_passes": not _in_ordered_loop(),
        "name": node_name(node or name),
    }


def _in_ordered_loop() -> bool:
    """Whether the next operation is in a loop whose passes run one after another.

    They do in a ``tf.function``, as far as side effects go, and side by side elsewhere.
    """
    if tf.executing_eagerly():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    while getattr(graph, "experimental_acd_manager", None) is not None:
        if type(graph).__name__ == "WhileBodyFuncGraph":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _contexts(graph: Any) -> Iterator[str]:
    """Yields the kinds of what encloses the next operation, from the inside outward."""
    while graph is not None:
        yield type(graph).__name__
        # No public function tells these.
        get_context = getattr(graph, "_get_control_flow_context", lambda: None)
        context = get_context()
        while context is not None:
            yield type(context).__name__
            context = getattr(context, "outer_context", None)
        graph = getattr(graph, "outer_graph", None)
