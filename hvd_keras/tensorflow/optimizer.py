"""DistributedOptimizer with the argument order of ``horovod.tensorflow``."""

from __future__ import annotations

from typing import Any

from hvd_keras.compression import Compression
from hvd_keras.errors import not_implemented
from hvd_keras.op_calls import Average, ReduceOp

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """``hvd_keras.keras.DistributedOptimizer``, for Keras 3 optimizers.

    Raises:
        NotInitializedError, TypeError, ValueError: as that one does; also for the optimizers of
            ``tf.compat.v1.train``, and for ``use_locking=True``, which Keras optimizers have not.
    """
    from hvd_keras.keras import optimizer as keras_optimizer  # late: it imports Keras

    if use_locking:
        raise not_implemented("hvd.DistributedOptimizer", "use_locking", True, "leave it out")
    return keras_optimizer.DistributedOptimizer(
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
        num_groups=num_groups,
        groups=groups,
    )
