"""DistributedOptimizer: a Keras optimizer that applies the gradients of all ranks.

The optimizer object itself becomes distributed: its class is replaced by a subclass that reduces
the gradients and leaves everything else to the optimizer. So it keeps slots, iteration count and
learning rate (float, schedule or callable), a compiled model that holds it sees the change, and
since the subclass has the name and module of its base, a saved model loads without this package.

Where the reduction takes place:

- in ``apply``, through which ``fit`` and ``apply_gradients`` pass: before clipping, weight decay
  and moving averages, which therefore see the same values on every rank;
- with Keras's ``gradient_accumulation_steps=k``, in the branch that makes the update: one reduction
  every k batches, of the accumulated gradients. Every rank takes that branch in the same step,
  since all count their steps alike;
- inside a ``LossScaleOptimizer``, before its test for finite gradients: an overflow on one rank
  makes every rank skip the step. ``compile`` puts one around the optimizer under the
  ``mixed_float16`` policy, so Keras's class is taught to do so (see loss_scale.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_keras import world
from hvd_keras.compression import Compression
from hvd_keras.double_reduction import check_not_reduced
from hvd_keras.gradients import Reduction, reduce_gradients
from hvd_keras.keras import _versions
from hvd_keras.keras._distributed import (
    DistributedMixin,
    as_layers,
    is_distributed,
    subclass_of,
)
from hvd_keras.op_calls import Average, ReduceOp
from hvd_keras.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    merge_slices: bool | None = None,
) -> Any:
    """Makes a Keras optimizer apply the average (or sum) of all ranks' gradients.

    Example::

        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
        model.compile(optimizer, loss="mse")

    Args:
        optimizer: a Keras optimizer, built or not, or its name. Optimizers of Keras 2 (tf_keras),
            new and legacy ones, are taken as well. A ``LossScaleOptimizer`` gets a distributed
            inner optimizer.
        name: prefix of the names of the collectives; give each optimizer its own where two of them
            apply gradients at the same time.
        device_dense, device_sparse: devices of the operations for dense and sparse gradients.
        compression: what floats travel as, see ``Compression``.
        sparse_as_dense: make ``tf.IndexedSlices`` dense before they are reduced.
        gradient_predivide_factor: with ``Average``, divide by it before the sum and by
            ``size() / gradient_predivide_factor`` after it.
        op: ``Average``, ``Sum`` or ``Adasum``.
        backward_passes_per_step: add up the gradients of this many batches, and reduce and apply
            them at once. In Keras 3 it sets ``gradient_accumulation_steps``, so the optimizer must
            not be built yet. ``iterations`` counts the updates.
        average_aggregated_gradients: divide that sum by ``backward_passes_per_step``.
        num_groups: send dense gradients in this many groups; 0 groups them by size.
        groups: lists of variables whose gradients are sent together.
        process_set: the ranks among which gradients are reduced; this one has to be among them.
        scale_local_gradients: with ``Average``, divide the gradients of local variables (see
            ``register_local_var``) by the number of ranks.
        merge_slices: of a sparse gradient, add up a rank's slices that have the same index before
            they travel, and send all as a dense tensor where the ranks have as many slices as the
            variable has rows. None does so where it makes no difference: without clipping, for SGD
            and for all optimizers of Keras 2. Keras 3's other optimizers take each slice by itself
            (Adam's second moment gets the sum of the squares, not the square of the sum), so with
            True the result is that of a dense gradient, and not of one process on the joined batch.

    Returns:
        ``optimizer``, now distributed.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError, ValueError: an argument is wrong, or the optimizer is distributed already.
    """
    world.require_initialized("hvd.DistributedOptimizer")
    reduction = Reduction(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        device_dense,
        device_sparse,
        name or "gradients",
        process_set,
        scale_local_gradients,
        num_groups,
        groups,
    )
    optimizer = _keras_optimizer(optimizer)
    if is_distributed(optimizer):
        raise ValueError(
            f"this {type(optimizer).__name__} optimizer is distributed already; wrapped again it "
            "would reduce the gradients twice"
        )
    target = _versions.innermost(optimizer)
    merge = adds_up_slices(target) if merge_slices is None else merge_slices
    reduction = dataclasses.replace(reduction, merge_slices=merge)
    _make_distributed(target, reduction, backward_passes_per_step, average_aggregated_gradients)
    return optimizer


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    merge_slices: bool | None = None,
) -> Any:
    """``DistributedOptimizer`` that leaves the variables of some layers to each rank.

    Args:
        local_layers: a Keras layer or several, built or not.

    The other arguments are those of ``DistributedOptimizer``.
    """
    optimizer = DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        merge_slices=merge_slices,
    )
    target = _versions.innermost(optimizer)
    target._hvd_local.layers.extend(as_layers(local_layers))
    return optimizer


def _make_distributed(optimizer: Any, reduction: Reduction, passes: int, average: bool) -> None:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            f"backward_passes_per_step is {passes!r}; expected a whole number of at least 1"
        )
    base = type(optimizer)
    if _versions.is_keras2(optimizer):
        from hvd_keras.keras import keras2_optimizer  # late: most programs do without it

        cls = keras2_optimizer.distributed_class(base, reduction, passes, average)
    else:
        scale = _accumulate(optimizer, passes, average)
        cls = keras3_class(base, reduction, Keras3Mixin)
        object.__setattr__(optimizer, "_hvd_accumulated_scale", scale)
    # Not a plain assignment: Keras's __setattr__ looks for variables in what is assigned.
    object.__setattr__(optimizer, "__class__", cls)


def keras3_class(base: type, reduction: Reduction, mixin: type[Keras3Mixin]) -> type:
    """Returns the distributed subclass of the class of a Keras 3 optimizer."""
    # Keras gives optimizers that are public the name of the module that exports them.
    public = getattr(keras.optimizers, base.__name__, None) is base
    module = "keras.optimizers" if public else base.__module__
    attributes = {"_hvd_reduction": reduction, "__module__": module}
    return subclass_of(base, mixin, keras, attributes)


def _accumulate(optimizer: keras.optimizers.Optimizer, passes: int, average: bool) -> float:
    """Makes the optimizer accumulate; returns what its average is to be multiplied by."""
    if passes == 1:
        return 1.0
    own = optimizer.gradient_accumulation_steps
    if own:
        raise ValueError(
            f"backward_passes_per_step={passes}, but the optimizer has "
            f"gradient_accumulation_steps={own}; leave out one of them"
        )
    if optimizer.built:
        raise ValueError(
            f"backward_passes_per_step={passes} of an optimizer that has been built already; wrap "
            f"it before it is used, or make it with gradient_accumulation_steps={passes}"
        )
    optimizer.gradient_accumulation_steps = passes
    return 1.0 if average else float(passes)


def adds_up_slices(optimizer: Any) -> bool:
    """Whether it does the same with several slices of one index as with their sum."""
    if any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue")):
        return False
    # Optimizers of Keras 2 begin with adding up.
    return _versions.is_keras2(optimizer) or isinstance(optimizer, keras.optimizers.SGD)


class Keras3Mixin(DistributedMixin):
    """What a distributed optimizer of Keras 3 does differently from its base class."""

    # Keras averages the gradients of several batches; multiplied by this they may be their sum.
    _hvd_accumulated_scale = 1.0
    # Set while `apply` is to leave the gradients alone, since they are reduced already.
    _hvd_reduced = False
    # While an accumulated update is being traced: the variables it is for.
    _hvd_accumulated_for: Sequence[Any] | None = None

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not self._hvd_reduced and grads:
            variables = trainable_variables or self._trainable_variables
            grads = self.hvd_reduce(grads, variables)
        super().apply(grads, trainable_variables)

    def hvd_reduce(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces what has to be reduced at every batch."""
        check_not_reduced(grads, self._hvd_reduction.op)
        if not self.hvd_accumulates:
            return self._hvd_reduced_by_ranks(grads, variables)
        # Keras assigns these in every step, so they cannot wait for the update.
        every = [i for i, v in enumerate(variables) if _overwrites(v)]
        if every:
            reduced = reduce_gradients(
                [grads[i] for i in every], [variables[i] for i in every], self._hvd_reduction
            )
            for i, grad in zip(every, reduced, strict=True):
                grads[i] = grad
        return grads

    @property
    def hvd_accumulates(self) -> bool:
        """Whether gradients are added up over several batches before they are reduced."""
        return bool(getattr(self, "gradient_accumulation_steps", None))

    @contextlib.contextmanager
    def hvd_gradients_reduced(self) -> Iterator[None]:
        """Within it, ``apply`` takes the gradients for reduced ones."""
        self._hvd_reduced = True
        try:
            yield
        finally:
            self._hvd_reduced = False

    # Keras calls the next three in this order in the step that makes an accumulated update:
    # _backend_apply_gradients(batch's gradients, variables), then, in the branch that makes the
    # update, _clip_gradients(accumulated gradients) and _backend_update_step(the same, ...). Older
    # releases clip before they accumulate, so that the last is the first to see what to reduce.

    def _backend_apply_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        if not self.hvd_accumulates or self._hvd_reduced:
            super()._backend_apply_gradients(grads, variables)
            return
        # Not a plain assignment: Keras would track the variables as the optimizer's own.
        object.__setattr__(self, "_hvd_accumulated_for", variables)
        try:
            updates = not tf.executing_eagerly() or self._hvd_is_update_step()
            super()._backend_apply_gradients(grads, variables)
            if updates and self._hvd_accumulated_for is not None:
                raise RuntimeError(
                    f"Keras {keras.__version__} has applied accumulated gradients in a way that "
                    "this release of hvd_keras does not know, so they were not reduced; leave "
                    "gradient_accumulation_steps out"
                )
        finally:
            object.__setattr__(self, "_hvd_accumulated_for", None)

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        return super()._clip_gradients(self._hvd_reduce_accumulated(grads))

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        grads = self._hvd_reduce_accumulated(grads)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _hvd_reduce_accumulated(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Reduces them, the first time that it is called in an accumulated update."""
        variables = self._hvd_accumulated_for
        if variables is None:
            return grads
        object.__setattr__(self, "_hvd_accumulated_for", None)
        reduced = self._hvd_reduced_by_ranks(grads, variables)
        scale = self._hvd_accumulated_scale
        if scale == 1.0:
            return reduced
        return [None if g is None else g * tf.cast(scale, g.dtype) for g in reduced]

    def _hvd_is_update_step(self) -> bool:
        # `iterations` counts updates, in older releases of Keras 3 batches.
        batches = getattr(self, "_iterations", self.iterations)
        return (
            int(keras.ops.convert_to_numpy(batches)) + 1
        ) % self.gradient_accumulation_steps == 0


def _keras_optimizer(optimizer: Any) -> Any:
    if isinstance(optimizer, str):
        optimizer = _versions.default_keras().optimizers.get(optimizer)
    if not isinstance(optimizer, _versions.optimizer_classes()):
        raise TypeError(
            f"optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; expected a "
            "Keras optimizer (keras.optimizers.SGD, ..., or tf_keras.optimizers.SGD, ...) or its "
            "name"
        )
    if not _versions.is_keras2(optimizer) and keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on the {keras.backend.backend()} backend; hvd_keras needs TensorFlow: set "
            "KERAS_BACKEND=tensorflow before Keras is imported"
        )
    return optimizer


def _overwrites(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))
