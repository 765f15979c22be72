"""Classes for training loops, with Horovod's arguments and errors."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat.errors import translated
from hvd_keras.compat.forwarding import forward
from hvd_keras.compat.process_sets import global_process_set
from hvd_keras.compression import Compression
from hvd_keras.op_calls import Average
from hvd_keras.tensorflow import hooks, tape

__all__ = [
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "PartialDistributedGradientTape",
]


class BroadcastGlobalVariablesHook(hooks.BroadcastGlobalVariablesHook):
    __doc__ = hooks.BroadcastGlobalVariablesHook.__doc__

    def begin(self) -> None:
        with translated():
            super().begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        with translated():
            super().after_create_session(session, coord)


class _Tape(tape.DistributedGradientTape):
    """A DistributedGradientTape whose errors are those of Horovod."""

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **options: Any,
    ) -> Any:
        """Returns the reduced gradients; ``use_generic_names`` makes no difference."""
        with translated():
            return super().gradient(target, sources, output_gradients, **options)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """``hvd_keras.DistributedGradientTape``."""
    options: dict[str, Any] = {}
    if process_set is not global_process_set:
        options["process_set"] = process_set
    if not scale_local_gradients:
        options["scale_local_gradients"] = False
    with translated():
        return _Tape(
            gradtape,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            **options,
        )


@forward()
def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``hvd_keras.PartialDistributedGradientTape``."""
