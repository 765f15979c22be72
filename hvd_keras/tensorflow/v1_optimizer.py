"""DistributedOptimizer for the optimizers of ``tf.compat.v1.train``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.gradients import Reduction, reduce_gradients

__all__ = ["DistributedV1Optimizer", "is_v1_optimizer"]

GradsAndVars = list[tuple[Any, Any]]


def is_v1_optimizer(optimizer: Any) -> bool:
    """Returns whether it is an optimizer of ``tf.compat.v1.train``."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """Wraps a ``tf.compat.v1.train`` optimizer: its gradients are those of all ranks, reduced.

    ``compute_gradients`` computes them with the wrapped optimizer and reduces them, so that what
    is done between it and ``apply_gradients`` (clipping, say) sees the same values on every rank.
    ``apply_gradients``, slots and variables are the wrapped optimizer's.

    With ``backward_passes_per_step=k``, gradients are added up over k runs of the training
    operation, then reduced and applied at once; in the runs between, nothing changes, and
    ``global_step`` stays. Between ``compute_gradients`` and ``apply_gradients`` the gradients of
    these runs are zeros.

    Args:
        optimizer: the one to wrap.
        name: the wrapper's name; None for "Distributed" and the class of ``optimizer``.
        use_locking: taken for compatibility; the wrapped optimizer's own setting counts.
        reduction: how gradients are reduced; None for their average.
        backward_passes_per_step: k, 1 or more.
        average_aggregated_gradients: divide the sum of k gradients by k.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError, ValueError: an argument is wrong, or the optimizer is distributed already.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        name: str | None = None,
        use_locking: bool = False,
        reduction: Reduction | None = None,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
    ) -> None:
        world.require_initialized("hvd.DistributedOptimizer")
        _check(optimizer, backward_passes_per_step)
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer
        self._reduction = reduction or Reduction()
        self._passes = int(backward_passes_per_step)
        self._average_passes = average_aggregated_gradients
        self._local_variables: list[Any] = []
        self._has_reduced = False
        # By graph, since one optimizer may serve several: (is this run the one that applies?, sums)
        self._accumulators: dict[Any, tuple[tf.Tensor, list[Any]]] = {}

    def register_local_var(self, var: Any) -> None:
        """Leaves ``var`` to each rank: its gradients are not reduced."""
        self._local_variables.append(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> GradsAndVars:
        """Returns pairs of reduced gradient and variable; arguments as for the wrapped one's."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        self._has_reduced = True
        grads = [grad for grad, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._passes > 1:
            reduced = self._accumulate(grads, variables)
        else:
            reduced = self._reduce(grads, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies the gradients with the wrapped optimizer, and returns the operation.

        It reduces nothing: the gradients are those that ``compute_gradients`` has returned.
        """
        pairs = list(grads_and_vars)
        if not self._has_reduced and world.size() > 1:
            warnings.warn(
                f"{self.get_name()} applies gradients that it has not computed, and so not "
                "reduced: each rank applies its own, unless a DistributedGradientTape has reduced "
                "them. Compute them with compute_gradients() or minimize() of this optimizer",
                stacklevel=2,
            )
        found = self._accumulators.get(_graph())
        if found is None:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        is_last, sums = found
        _refuse_ref_variables([v for _, v in pairs])
        self._create_slots_of_inner([v for g, v in pairs if g is not None])

        def apply() -> tf.Operation:
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            with tf.control_dependencies([applied]):
                cleared = [s.assign(tf.zeros_like(s)) for s in sums if s is not None]
                return tf.group(applied, *cleared)

        return tf.cond(is_last, apply, tf.no_op)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return reduce_gradients(grads, variables, self._reduction, self._local_variables)

    def _accumulate(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Adds the gradients to sums, and reduces those in every k-th run."""
        with tf.compat.v1.variable_scope(None, default_name="hvd_accumulation"):
            count = _local_variable("passes", tf.zeros([], tf.int64))
            sums = [
                None if grad is None else _local_variable(f"sum_{i}", tf.zeros(v.shape, grad.dtype))
                for i, (grad, v) in enumerate(zip(grads, variables, strict=True))
            ]
        added = [
            s.assign_add(tf.convert_to_tensor(grad))
            for s, grad in zip(sums, grads, strict=True)
            if s is not None
        ]
        with tf.control_dependencies([tf.group(*added)]):
            passes = tf.identity(count.assign_add(1))
        is_last = tf.equal(passes % self._passes, 0)
        self._accumulators[_graph()] = is_last, sums
        present = [i for i, s in enumerate(sums) if s is not None]

        def reduce() -> list[tf.Tensor]:
            with tf.control_dependencies([passes]):
                values = [tf.identity(sums[i]) for i in present]
            if self._average_passes:
                values = [value / tf.cast(self._passes, value.dtype) for value in values]
            reduced = self._reduce(values, [variables[i] for i in present])
            return [tf.identity(grad) for grad in reduced]

        def wait() -> list[tf.Tensor]:
            return [tf.zeros(variables[i].shape, grads[i].dtype) for i in present]

        results: list[Any] = [None] * len(sums)
        if present:
            outputs = tf.cond(is_last, reduce, wait)
            outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            for i, grad in zip(present, outputs, strict=True):
                results[i] = grad
        return results

    def _create_slots_of_inner(self, variables: Sequence[Any]) -> None:
        """Creates the slots outside of the branch in which they are used."""
        if variables and not tf.executing_eagerly():
            with tf.init_scope():
                self._optimizer._create_slots(variables)


def _check(optimizer: Any, passes: Any) -> None:
    if isinstance(optimizer, DistributedV1Optimizer):
        raise ValueError(
            f"this {type(optimizer._optimizer).__name__} is distributed already; wrapped again it "
            "would reduce the gradients twice"
        )
    if not is_v1_optimizer(optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; expected an "
            "optimizer of tf.compat.v1.train"
        )
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            f"backward_passes_per_step is {passes!r}; expected a whole number of at least 1"
        )
    if passes > 1 and tf.executing_eagerly():
        raise ValueError(
            f"backward_passes_per_step={passes} of a tf.compat.v1.train optimizer needs a graph; "
            "in eager code use a Keras optimizer"
        )


def _refuse_ref_variables(variables: Sequence[Any]) -> None:
    """TensorFlow cannot assign these in a branch, and says so with a riddle about types."""
    if not tf.compat.v1.control_flow_v2_enabled():
        return
    for variable in variables:
        if tf.as_dtype(variable.dtype)._is_ref_dtype:
            raise ValueError(
                f"backward_passes_per_step: {variable.name} is a reference variable, which cannot "
                "be updated in a branch of the graph; call tf.compat.v1.disable_v2_behavior(), or "
                "tf.compat.v1.enable_resource_variables(), at the start of the script"
            )


def _local_variable(name: str, value: tf.Tensor) -> Any:
    """A variable that is neither saved nor broadcast: it belongs to the rank."""
    return tf.compat.v1.get_variable(
        name,
        initializer=value,
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        use_resource=True,
    )


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
