"""The replica of this process, while ``Strategy.run`` calls a function in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_keras.distribute.ranks import Ranks
from hvd_keras.op_calls import Average, Sum

__all__ = ["Replica", "current_replica", "in_optimizer", "set_in_optimizer"]

# Graphs in which TensorFlow traces a branch or a loop of the function around them.
_CONTROL_FLOW = {"CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph"}

_local = threading.local()


def in_optimizer() -> bool:
    """Whether an optimizer is applying gradients."""
    return bool(getattr(_local, "in_optimizer", False))


def set_in_optimizer(value: bool) -> bool:
    """Says so, and returns what was said before."""
    before = in_optimizer()
    _local.in_optimizer = value
    return before


class Replica(tf.distribute.ReplicaContext):
    """What ``tf.distribute.get_replica_context()`` returns in it.

    Besides that it knows two things about the call:

    - the part of the joined batch that this rank has, so that means over unequal parts are right;
    - which moving statistics were assigned: they become the ranks' means at the end of the call,
      all in one operation.

    Both belong to the graph that the call builds. In a ``tf.function`` that the called function
    calls they are not to be had: it is traced once and then runs without this.

    Args:
        strategy: the strategy.
        ranks: its ranks.
        arguments: what the function is called with; the first tensor in it that is no scalar tells
            the size of the batch.
    """

    def __init__(self, strategy: Any, ranks: Ranks, arguments: Any) -> None:
        super().__init__(strategy, replica_id_in_sync_group=ranks.rank)
        self._ranks = ranks
        self._arguments = arguments
        self._graph = _graph()
        self._share: tf.Tensor | None = None
        self._statistics: dict[int, Any] = {}

    def share(self) -> tf.Tensor | None:
        """Returns which part of the joined batch this rank has: a float32 scalar from 0 to 1.

        None where that is not known, or the question makes no sense.
        """
        if self._ranks.size == 1 or not self._is_ours():
            return None
        if self._share is not None:
            return self._share
        rows = _rows(self._arguments)
        if rows is None:
            return None
        mine = tf.cast(rows, tf.float32)
        (all_of_them,) = self._ranks.reduce_together([mine], Sum, "strategy.batch")
        share = tf.math.divide_no_nan(mine, all_of_them)
        if _graph() is self._graph:
            self._share = share
        return share

    def note_statistic(self, variable: Any) -> None:
        """Lets the variable, which has been assigned, become the mean of the ranks'."""
        if self._is_ours():
            self._statistics[id(variable)] = variable
        else:
            self._average([variable], None)

    def finish(self) -> None:
        """Called after the function, in the graph in which it was called."""
        variables = list(self._statistics.values())
        self._statistics = {}
        if variables:
            self._average(variables, self.share())

    def _average(self, variables: list[Any], share: tf.Tensor | None) -> None:
        local = [variable.values[0] for variable in variables]
        values = [tf.convert_to_tensor(variable) for variable in local]
        name = "strategy.statistics"
        if share is None:
            means = self._ranks.reduce_together(values, Average, name)
        else:
            # What a rank without rows has computed is no number, and zero times that neither.
            parts = [tf.where(share > 0, v * tf.cast(share, v.dtype), 0) for v in values]
            means = self._ranks.reduce_together(parts, Sum, name)
        for variable, mean in zip(local, means, strict=True):
            variable.assign(mean)

    def _is_ours(self) -> bool:
        """Whether the next operation goes into this call's graph, or into a branch of it."""
        graph = _graph()
        while graph is not self._graph and type(graph).__name__ in _CONTROL_FLOW:
            graph = graph.outer_graph
        return graph is self._graph


def current_replica() -> Replica | None:
    """Returns the replica if the caller runs in a strategy of ours."""
    context = tf.distribute.get_replica_context()
    return context if isinstance(context, Replica) else None


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _rows(arguments: Any) -> Any:
    """Returns the first dimension of the first tensor that has one."""
    for leaf in _leaves(arguments):
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        shape = getattr(leaf, "shape", None)
        if isinstance(leaf, tf.Variable) or shape is None or tf.TensorShape(shape).rank == 0:
            continue
        if not tf.is_tensor(leaf) and not hasattr(leaf, "__array__"):
            continue
        return tf.shape(leaf, out_type=tf.int64)[0]
    return None


def _leaves(structure: Any) -> Iterator[Any]:
    if isinstance(structure, dict):
        structure = [structure[key] for key in sorted(structure, key=str)]
    if isinstance(structure, (list, tuple)):
        for part in structure:
            yield from _leaves(part)
    else:
        yield structure
