"""The names for scripts that use TensorFlow's own training loops, as in ``horovod.tensorflow``."""

from hvd_keras.collectives import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    barrier,
    broadcast,
    grouped_allreduce,
)
from hvd_keras.compression import Compression
from hvd_keras.errors import LibraryError, NotInitializedError
from hvd_keras.objects import allgather_object, broadcast_object, broadcast_variables
from hvd_keras.tensorflow.optimizer import DistributedOptimizer
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
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
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
]
