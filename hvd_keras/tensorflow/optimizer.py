"""DistributedOptimizer with the argument order of ``horovod.tensorflow``."""

from __future__ import annotations

from typing import Any

from hvd_keras.compression import Compression
from hvd_keras.errors import not_implemented
from hvd_keras.gradients import Reduction
from hvd_keras.op_calls import Average, ReduceOp
from hvd_keras.process_sets import ProcessSet, global_process_set
from hvd_keras.tensorflow.v1_optimizer import DistributedV1Optimizer, is_v1_optimizer

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
    process_set: ProcessSet | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer apply the gradients of all ranks, reduced.

    An optimizer of ``tf.compat.v1.train`` is wrapped (see ``DistributedV1Optimizer``, which has
    ``use_locking``); any other goes to ``hvd_keras.keras.DistributedOptimizer``, where the
    arguments are described.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        TypeError, ValueError: an argument is wrong, or the optimizer is distributed already.
    """
    process_set = process_set or global_process_set
    if is_v1_optimizer(optimizer):
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
        return DistributedV1Optimizer(
            optimizer,
            name,
            use_locking,
            reduction,
            backward_passes_per_step,
            average_aggregated_gradients,
        )

    from hvd_keras.keras.optimizer import DistributedOptimizer as wrap  # late: it imports Keras

    if use_locking:
        raise not_implemented("hvd.DistributedOptimizer", "use_locking", True, "leave it out")
    return wrap(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
