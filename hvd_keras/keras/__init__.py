"""The names for Keras scripts, as in ``horovod.keras`` and ``horovod.tensorflow.keras``.

The three collectives here take their arguments in the order that those have.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as _tf

from hvd_keras import collectives as _collectives
from hvd_keras.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    barrier,
    join,
)
from hvd_keras.compression import Compression
from hvd_keras.errors import LibraryError, NotInitializedError
from hvd_keras.keras.hooks import install_all as _install_hooks
from hvd_keras.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvd_keras.objects import allgather_object, broadcast_object, broadcast_variables
from hvd_keras.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hvd_keras.tensorflow.tape import DistributedGradientTape
from hvd_keras.world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Adasum",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "join",
    "reducescatter",
    "remove_process_set",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "LibraryError",
    "Max",
    "Min",
    "NotInitializedError",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "SyncBatchNormalization",
    "callbacks",
    "evaluate",
    "predict",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shard",
    "shutdown",
    "size",
]

_install_hooks()


@_tf.autograph.experimental.do_not_convert
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> _tf.Tensor | _tf.IndexedSlices:
    """``hvd_keras.allreduce``; the average, unless ``op`` says otherwise."""
    return _collectives.allreduce(
        value,
        average,
        op=op,
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


@_tf.autograph.experimental.do_not_convert
def allgather(value: Any, name: str | None = None) -> _tf.Tensor:
    """``hvd_keras.allgather``."""
    return _collectives.allgather(value, name)


@_tf.autograph.experimental.do_not_convert
def broadcast(value: Any, root_rank: int, name: str | None = None) -> _tf.Tensor:
    """``hvd_keras.broadcast``."""
    return _collectives.broadcast(value, root_rank, name)


@_tf.autograph.experimental.do_not_convert
def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> _tf.Tensor:
    """``hvd_keras.reducescatter``."""
    return _collectives.reducescatter(value, op=op, name=name)


_LAZY = {
    "SyncBatchNormalization": ".sync_batch_norm",
    "callbacks": ".callbacks",
    "evaluate": ".evaluation",
    "load_model": ".saving",
    "predict": ".evaluation",
    "shard": ".data",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = importlib.import_module(__name__ + _LAZY[name])
        return module if name == "callbacks" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
