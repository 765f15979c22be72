"""DistributedOptimizer with the argument order of ``horovod.tensorflow``."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from hvd_keras.compression import Compression
from hvd_keras.errors import not_implemented
from hvd_keras.gradients import Reduction
from hvd_keras.op_calls import Average, ReduceOp
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
    process_set: Any = None,
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
    reduction = {
        "op": op,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "gradient_predivide_factor": gradient_predivide_factor,
        "device_dense": device_dense,
        "device_sparse": device_sparse,
    }
    grouping = {"num_groups": num_groups, "groups": groups}
    if is_v1_optimizer(optimizer):
        # Buckets by hand are a matter of speed only, and the automatic ones are faster.
        known = [field.name for field in dataclasses.fields(Reduction)]
        if process_set is not None:
            reduction["process_set"] = process_set
        return DistributedV1Optimizer(
            optimizer,
            name,
            use_locking,
            Reduction(**_understood(reduction | {"name": name or "gradients"}, known)),
            backward_passes_per_step,
            average_aggregated_gradients,
            scale_local_gradients,
        )

    from hvd_keras.keras import optimizer as keras_optimizer  # late: it imports Keras

    if use_locking:
        raise not_implemented("hvd.DistributedOptimizer", "use_locking", True, "leave it out")
    options = reduction | grouping
    options["name"] = name
    options["backward_passes_per_step"] = backward_passes_per_step
    options["average_aggregated_gradients"] = average_aggregated_gradients
    if process_set is not None:
        options["process_set"] = process_set
    if not scale_local_gradients:
        options["scale_local_gradients"] = False
    wrap = keras_optimizer.DistributedOptimizer
    return wrap(optimizer, **_understood(options, inspect.signature(wrap).parameters))


def _understood(options: dict[str, Any], known: Any) -> dict[str, Any]:
    for option in options:
        if option not in known:
            raise not_implemented(
                "hvd.DistributedOptimizer", option, options[option], "leave it out"
            )
    return options
