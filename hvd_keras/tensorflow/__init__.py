"""The names for scripts that use TensorFlow's own training loops, as in ``horovod.tensorflow``."""

from typing import Any

from hvd_keras.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from hvd_keras.compression import Compression
from hvd_keras.diagnostics.flight_recorder import dump_flight_recorder
from hvd_keras.diagnostics.stats import stats
from hvd_keras.errors import LibraryError, NotInitializedError
from hvd_keras.objects import (
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from hvd_keras.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hvd_keras.tensorflow.hooks import BroadcastGlobalVariablesHook, broadcast_global_variables
from hvd_keras.tensorflow.optimizer import DistributedOptimizer
from hvd_keras.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
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
    "alltoall",
    "broadcast_",
    "broadcast_object_fn",
    "global_process_set",
    "grouped_allgather",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
    "Average",
    "Strategy",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
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
    "broadcast_global_variables",
    "broadcast_variables",
    "dump_flight_recorder",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "stats",
]


def __getattr__(name: str) -> Any:
    if name == "Strategy":  # it imports Keras
        from hvd_keras.distribute import Strategy

        return Strategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
