"""``horovod.tensorflow`` on hvd_keras."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat import forwarding, keras2
from hvd_keras.compat.forwarding import forward
from hvd_keras.compat.training import (
    BroadcastGlobalVariablesHook,
    DistributedGradientTape,
    PartialDistributedGradientTape,
)

from ..common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from ..common.util import (
    check_extension,
    check_num_rank_power_of_2,
    gpu_available,
    split_list,
)
from . import mpi_ops
from .compression import Compression
from .functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .mpi_ops import *  # noqa: F403
from .mpi_ops import Average
from .mpi_ops import __all__ as _mpi_ops_names
from .util import _executing_eagerly, refs_to_vars, vars_to_refs

__all__ = [
    *_mpi_ops_names,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "_executing_eagerly",
    "add_process_set",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "check_num_rank_power_of_2",
    "global_process_set",
    "gpu_available",
    "mpi_ops",
    "refs_to_vars",
    "remove_process_set",
    "split_list",
    "vars_to_refs",
]

keras2.accept_old_spellings()


@forward()
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """``hvd_keras.tensorflow.DistributedOptimizer``."""


def __getattr__(name: str) -> Any:
    if name in ("Adasum", "SyncBatchNormalization"):
        return forwarding.find(name, forwarding.KERAS)
    if name in ("elastic", "keras", "functions", "util", "compression", "sync_batch_norm"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise forwarding.missing_attribute(__name__, name)
