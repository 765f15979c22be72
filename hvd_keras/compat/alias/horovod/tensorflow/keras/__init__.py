"""``horovod.tensorflow.keras`` on hvd_keras."""

from __future__ import annotations

import importlib
from typing import Any

from hvd_keras.compat import forwarding, keras2
from hvd_keras.compat.forwarding import KERAS, forward
from hvd_keras.compat.keras_names import (
    allgather,
    allreduce,
    broadcast,
    load_model,
    reducescatter,
)

from ...common.basics import *  # noqa: F403
from ...common.basics import __all__ as _basics_names
from ...common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from ..compression import Compression
from ..functions import broadcast_global_variables
from ..mpi_ops import Average, Sum

__all__ = [
    *_basics_names,
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
]

keras2.accept_old_spellings()


@forward(["hvd_keras.keras.optimizer"])
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """``hvd_keras.DistributedOptimizer``."""


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "elastic"):
        return importlib.import_module(f".{name}", __name__)
    if name == "PartialDistributedOptimizer":
        from ...keras import PartialDistributedOptimizer

        return PartialDistributedOptimizer
    if name == "Adasum":
        return forwarding.find(name, KERAS)
    raise forwarding.missing_attribute(__name__, name)
