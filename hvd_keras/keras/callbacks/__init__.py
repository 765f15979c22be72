"""Callbacks for ``model.fit`` on several ranks."""

from hvd_keras.keras.callbacks.best_model import BestModelCheckpoint
from hvd_keras.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from hvd_keras.keras.callbacks.checkpoint import RankZeroModelCheckpoint
from hvd_keras.keras.callbacks.learning_rate import LearningRateScheduleCallback
from hvd_keras.keras.callbacks.metric_average import MetricAverageCallback
from hvd_keras.keras.callbacks.rank_zero import RankZero
from hvd_keras.keras.callbacks.stats import StatsCallback
from hvd_keras.keras.callbacks.warmup import LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RankZero",
    "RankZeroModelCheckpoint",
    "StatsCallback",
]
