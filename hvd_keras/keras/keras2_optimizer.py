"""What makes an optimizer of Keras 2 distributed.

Keras 2 has a place for it: before an optimizer uses gradients, ``apply_gradients`` has them summed
over the replicas of a ``tf.distribute`` strategy (``aggregate_gradients``, in legacy optimizers
``_aggregate_gradients``). Ranks are reduced there: ``fit``, ``minimize`` and loops of one's own
pass through it once, before clipping, weight decay and moving averages. A ``LossScaleOptimizer``
calls it on the optimizer inside of it, before its test for finite gradients, so that an overflow on
one rank makes every rank skip the step. As ever in Keras 2, ``skip_gradients_aggregation=True``
(legacy: ``experimental_aggregate_gradients=False``) says that this has been done already.

Keras 2 cannot accumulate gradients over several batches, so with ``backward_passes_per_step`` that
is done here, around ``apply_gradients``. What is accumulated belongs to the rank; it is neither
saved nor broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_keras.collectives import Min, allreduce
from hvd_keras.double_reduction import check_not_reduced
from hvd_keras.gradients import Reduction
from hvd_keras.keras import _versions
from hvd_keras.keras._accumulation import Accumulator
from hvd_keras.keras._distributed import DistributedMixin, subclass_of

__all__ = ["distributed_class"]

GradsAndVars = list[tuple[Any, Any]]

# Where Keras 2 keeps the name that a class is saved under; it looks at the class itself only.
_PUBLIC_NAMES = ("_keras_api_names", "_keras_api_names_v1", "_tf_deprecated_api_names")


def distributed_class(base: type, reduction: Reduction, passes: int, average: bool) -> type:
    """Returns the distributed subclass of a class of optimizers of Keras 2.

    Args:
        base: the class.
        reduction: how gradients are reduced.
        passes: over how many batches they are accumulated.
        average: whether the sum over these batches is divided by their number.

    Raises:
        ValueError: gradients are to be accumulated in a ``tf.compat.v1`` graph.
    """
    if passes > 1 and not tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            f"backward_passes_per_step={passes} of a Keras 2 optimizer does not work in "
            "tf.compat.v1 graphs; leave it out, or do not call tf.compat.v1.disable_v2_behavior()"
        )
    from hvd_keras.keras import hooks  # late: they look for distributed optimizers

    keras = _versions.tf_keras()
    hooks.install(keras)  # which may have been imported after this package
    is_new = issubclass(base, keras.optimizers.Optimizer)
    attributes: dict[str, Any] = {
        "_hvd_reduction": reduction,
        "_hvd_passes": passes,
        "_hvd_average_passes": average,
        **{name: vars(base)[name] for name in _PUBLIC_NAMES if name in vars(base)},
    }
    return subclass_of(base, _NewStyleMixin if is_new else _LegacyMixin, keras, attributes)


class Keras2Mixin(DistributedMixin):
    """What new and legacy optimizers have in common."""

    _hvd_passes = 1
    _hvd_average_passes = False
    _hvd_accumulator: Accumulator | None = None
    # Set while a LossScaleOptimizer looks at the gradients of a batch that are to be accumulated.
    _hvd_is_scaled = False

    def _hvd_aggregate(
        self, pairs: GradsAndVars, over_replicas: Callable[[GradsAndVars], Any]
    ) -> GradsAndVars:
        """Reduces the gradients of a batch, or says that they are to be accumulated.

        Args:
            pairs: the gradients and their variables.
            over_replicas: what the optimizer's own class does with them.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"a tf.distribute strategy of {replicas} replicas inside of a rank is not "
                "supported by hvd.DistributedOptimizer; start one rank for each device"
            )
        check_not_reduced([grad for grad, _ in pairs], self._hvd_reduction.op)
        pairs = list(over_replicas(pairs))
        if self._hvd_passes == 1:
            grads = self._hvd_reduced_by_ranks([g for g, _ in pairs], [v for _, v in pairs])
            return [(grad, v) for grad, (_, v) in zip(grads, pairs, strict=True)]
        object.__setattr__(self, "_hvd_is_scaled", True)
        return self._hvd_agree_on_overflow(pairs)

    def _hvd_agree_on_overflow(self, pairs: GradsAndVars) -> GradsAndVars:
        """Makes all gradients NaN where any rank's are not finite, so that all skip the batch.

        They stay on this rank until the update, so the ranks ask each other.
        """
        present = [i for i, (grad, _) in enumerate(pairs) if grad is not None]
        if self.process_set.size() == 1 or not present:
            return pairs
        if all(isinstance(pairs[i][0], tf.IndexedSlices) for i in present):
            # Slices may be none at all, and hold no NaN.
            pairs[present[0]] = (tf.convert_to_tensor(pairs[present[0]][0]), pairs[present[0]][1])
        values = [_values(pairs[i][0]) for i in present]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
        finite = allreduce(
            finite,
            op=Min,
            name="loss_scale_finite",
            ignore_name_scope=True,
            process_set=self.process_set,
        )
        for i, value in zip(present, values, strict=True):
            nan = tf.constant(float("nan"), value.dtype)
            pairs[i] = (_with_values(pairs[i][0], tf.where(finite, value, nan)), pairs[i][1])
        return pairs

    def _hvd_accumulates(self, aggregates: bool) -> bool:
        """Whether the gradients that are to be applied are to be accumulated.

        Args:
            aggregates: False: they have passed through ``_hvd_aggregate``, or it is not wanted.
        """
        was_scaled = self._hvd_is_scaled
        object.__setattr__(self, "_hvd_is_scaled", False)
        return self._hvd_passes > 1 and (aggregates or was_scaled)

    def _hvd_accumulate(self, pairs: GradsAndVars, apply: Callable[[GradsAndVars], Any]) -> None:
        """Adds the gradients to those of earlier batches; in every k-th batch, applies the sums."""
        _versions.build(self, [v for _, v in pairs])
        present = [(grad, v) for grad, v in pairs if grad is not None]
        check_not_reduced([grad for grad, _ in present], self._hvd_reduction.op)
        if self._hvd_accumulator is None:
            object.__setattr__(self, "_hvd_accumulator", Accumulator(self._hvd_passes))
        accumulator: Any = self._hvd_accumulator
        is_last = accumulator.add(present)

        def update() -> None:
            variables = [v for _, v in present]
            sums = accumulator.take(variables, self._hvd_average_passes)
            grads = self._hvd_reduced_by_ranks(sums, variables)
            apply(list(zip(grads, variables, strict=True)))

        tf.cond(is_last, update, lambda: None)


class _NewStyleMixin(Keras2Mixin):
    """For ``tf_keras.optimizers``."""

    @tf.autograph.experimental.do_not_convert
    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> GradsAndVars:
        return self._hvd_aggregate(list(grads_and_vars), super().aggregate_gradients)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> Any:
        skip = skip_gradients_aggregation or not kwargs.get(
            "experimental_aggregate_gradients", True
        )
        apply = super().apply_gradients
        if not self._hvd_accumulates(not skip):
            return apply(
                grads_and_vars,
                name=name,
                skip_gradients_aggregation=skip_gradients_aggregation,
                **kwargs,
            )
        self._hvd_accumulate(
            list(grads_and_vars),
            lambda pairs: apply(pairs, name=name, skip_gradients_aggregation=True),
        )
        return self.iterations


class _LegacyMixin(Keras2Mixin):
    """For ``tf_keras.optimizers.legacy``."""

    @tf.autograph.experimental.do_not_convert
    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> GradsAndVars:
        return self._hvd_aggregate(list(grads_and_vars), super()._aggregate_gradients)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        apply = super().apply_gradients
        if not self._hvd_accumulates(experimental_aggregate_gradients):
            return apply(
                grads_and_vars,
                name=name,
                experimental_aggregate_gradients=experimental_aggregate_gradients,
            )
        self._hvd_accumulate(
            list(grads_and_vars),
            lambda pairs: apply(pairs, name=name, experimental_aggregate_gradients=False),
        )
        return tf.no_op()  # an operation in a graph, None in eager code, like the base class


def _values(grad: Any) -> tf.Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)


def _with_values(grad: Any, values: tf.Tensor) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return values
