"""DistributedGradientTape: a tf.GradientTape whose gradients are those of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.compression import Compression
from hvd_keras.double_reduction import TAPE_NAME, mark_reduced
from hvd_keras.gradients import Reduction, reduce_gradients
from hvd_keras.op_calls import Average, ReduceOp
from hvd_keras.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class DistributedGradientTape(tf.GradientTape):
    """Wraps a ``tf.GradientTape``; ``gradient`` returns what all ranks' gradients reduce to.

    Example::

        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))

    Use it with an optimizer that is not a ``DistributedOptimizer``: that would reduce again. Every
    rank has to ask for the same gradients. Everything else (``watch``, ``jacobian``, the ``with``
    statement ...) is the wrapped tape's, and local to the rank.

    Args:
        gradtape: the tape, before or after it has recorded.
        device_dense, device_sparse: devices of the operations for dense and sparse gradients.
        compression: what floats travel as, see ``Compression``.
        sparse_as_dense: make ``tf.IndexedSlices`` dense before they are reduced.
        op: ``Average``, ``Sum`` or ``Adasum``.
        gradient_predivide_factor: with ``Average``, divide by it before the sum and by
            ``size() / gradient_predivide_factor`` after it.
        num_groups: send dense gradients in this many groups; 0 groups them by size.
        groups: lists of variables whose gradients are sent together.
        process_set: the ranks among which gradients are reduced; this one has to be among them.
        scale_local_gradients: with ``Average``, divide the gradients of local sources (see
            ``register_local_source``) by the number of ranks.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        world.require_initialized("hvd.DistributedGradientTape")
        if isinstance(gradtape, DistributedGradientTape):
            raise ValueError(
                "this tape is a DistributedGradientTape already; wrapped again it would reduce the "
                "gradients twice"
            )
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(f"gradtape is a {type(gradtape).__name__}; expected a tf.GradientTape")
        self._tape = gradtape
        self._reduction = Reduction(
            op,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            device_dense,
            device_sparse,
            TAPE_NAME,
            process_set,
            scale_local_gradients,
            num_groups,
            groups,
        )
        self._local_sources: list[Any] = []
        self._local_layers: list[Any] = []

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns the gradients of all ranks' targets, reduced; see ``tf.GradientTape.gradient``.

        Returns:
            A structure like ``sources``; None for sources that the target does not depend on, which
            have to be the same on every rank.
        """
        local = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources = tf.nest.flatten(sources)
        layer_sources = [v for layer in self._local_layers for v in layer.trainable_variables]
        reduced = reduce_gradients(
            tf.nest.flatten(local),
            flat_sources,
            self._reduction,
            [*self._local_sources, *layer_sources],
        )
        if self._reduction.process_set.size() > 1:
            mark_reduced(reduced)
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of ``source`` to each rank: it is not reduced."""
        self._local_sources.append(source)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        if name == "_tape":  # not yet set: the tape was not made by __init__
            raise AttributeError(name)
        return getattr(self._tape, name)


def _of_wrapped_tape(name: str) -> Callable:
    @functools.wraps(getattr(tf.GradientTape, name))
    def method(self: DistributedGradientTape, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._tape, name)(*args, **kwargs)

    return method


# A tf.GradientTape for whoever asks, but one whose state is the wrapped tape's.
for _name, _member in vars(tf.GradientTape).items():
    if callable(_member) and _name not in vars(DistributedGradientTape) and _name[:2] != "__":
        setattr(DistributedGradientTape, _name, _of_wrapped_tape(_name))


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedGradientTape:
    """``DistributedGradientTape`` that leaves the variables of some layers to each rank.

    Args:
        local_layers: a Keras layer or several, built or not.

    The other arguments are those of ``DistributedGradientTape``.
    """
    from hvd_keras.keras._distributed import as_layers  # which needs Keras

    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    tape._local_layers.extend(as_layers(local_layers))
    return tape
