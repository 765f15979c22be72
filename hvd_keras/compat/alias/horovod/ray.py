"""``horovod.ray.RayExecutor``, on hvd_keras; its elastic executor is not carried over."""

from __future__ import annotations

from typing import Any

from hvd_keras.compat.forwarding import missing_attribute
from hvd_keras.launch import environment
from hvd_keras.runner import ray as runner

__all__ = ["RayExecutor"]


class RayExecutor(runner.RayExecutor):
    """``hvd_keras.ray.RayExecutor``, for functions that import ``horovod``."""

    _worker_env = {environment.ALIAS_VARIABLE: "1"}


def __getattr__(name: str) -> Any:
    raise missing_attribute(__name__, name)
