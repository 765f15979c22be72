"""Callbacks: hvd_keras's own."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat import forwarding
from hvd_keras.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


def __getattr__(name: str) -> Any:
    raise forwarding.missing_attribute(__name__, name)
