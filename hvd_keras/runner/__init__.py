"""Running a function on several ranks: from Python, from Databricks-style scripts, on Spark."""

from hvd_keras.runner.driver_log import log_to_driver
from hvd_keras.runner.errors import RankFailedError
from hvd_keras.runner.horovod_runner import HorovodRunner
from hvd_keras.runner.local import run

__all__ = ["HorovodRunner", "RankFailedError", "log_to_driver", "run"]
