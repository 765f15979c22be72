"""``hvd_keras.ray.RayExecutor``: functions on the actors of a Ray cluster; each is a rank."""

from hvd_keras.runner.ray import RayExecutor

__all__ = ["RayExecutor"]
