"""``hvd_keras.spark.run``: a function as the tasks of a Spark job; each task is a rank."""

from hvd_keras.runner.spark import run

__all__ = ["run"]
