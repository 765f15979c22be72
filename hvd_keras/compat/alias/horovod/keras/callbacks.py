"""Callbacks: hvd_keras's own."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat import forwarding
from hvd_keras.keras import callbacks as _callbacks
from hvd_keras.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


def __getattr__(name: str) -> Any:
    if name == "BestModelCheckpoint" and hasattr(_callbacks, name):
        return getattr(_callbacks, name)
    raise forwarding.missing_attribute(__name__, name)
