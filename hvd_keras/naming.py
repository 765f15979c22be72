"""Names of collectives. Ranks find each other's collectives by name, so names must agree.

In eager code a name may be used again and again: the first use of it on one rank meets the first
use on the others. In a graph several ops may be in flight at once and start in any order, so there
every op has a name of its own: it is made from the functions that are being traced, from the
outermost one inward, and numbered in the order of tracing. Layer, optimizer and scope names take no
part, since Keras numbers those per process: a rank that has built one model more than the others
would use other names.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter

import tensorflow as tf

__all__ = ["collective_name", "node_name"]

# Numbers given so far, by outermost graph.
_used: weakref.WeakKeyDictionary[tf.Graph, Counter[str]] = weakref.WeakKeyDictionary()


def collective_name(kind: str, name: str | None = None, *, ignore_name_scope: bool = True) -> str:
    """Returns the name for the next collective.

    Args:
        kind: used where there is no ``name``: the name of the operation.
        name: the user's.
        ignore_name_scope: whether to leave out the name scopes that are open around the user's
            name. A name from ``kind`` never has them.
    """
    if tf.executing_eagerly():
        return name or kind
    graph = tf.compat.v1.get_default_graph()
    base = name or kind
    if name and not ignore_name_scope and graph.get_name_scope():
        base = f"{graph.get_name_scope()}/{name}"
    functions: list[str] = []
    root, outer = graph, getattr(graph, "outer_graph", None)
    while outer is not None:
        functions.insert(0, _function_name(root))
        if not outer.building_function and tf.compat.v1.executing_eagerly_outside_functions():
            break  # the graph around it is only where eager code keeps its leftovers
        root, outer = outer, getattr(outer, "outer_graph", None)
    full = "/".join([*functions, base])
    counter = _used.setdefault(root, Counter())
    counter[full] += 1
    return full if counter[full] == 1 else f"{full}_{counter[full] - 1}"


def node_name(text: str) -> str:
    """Returns ``text`` as a name for a graph node, which TensorFlow's errors show."""
    cleaned = re.sub(r"[^A-Za-z0-9_./-]", "_", text)
    return cleaned if re.match(r"[A-Za-z0-9.]", cleaned) else f"hvd_{cleaned}"


def _function_name(graph: tf.Graph) -> str:
    name = getattr(graph, "name", "graph")
    if type(graph).__name__ == "FuncGraph" and not name.startswith("__"):
        return name  # the user's own function
    # TensorFlow puts process-wide counters into the names of branches, loop bodies and gradient
    # functions ("while_body_17_grad_23"); they differ between ranks.
    return re.sub(r"_\d+(?=_|$)", "", name)
