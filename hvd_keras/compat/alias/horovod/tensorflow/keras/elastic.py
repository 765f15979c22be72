"""Elastic states and callbacks for Keras, for jobs whose ranks are fixed."""

from hvd_keras.compat.elastic import run
from hvd_keras.compat.elastic_keras import (
    CommitStateCallback,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
