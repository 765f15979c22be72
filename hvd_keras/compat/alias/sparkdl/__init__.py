"""The names of Databricks' ``sparkdl`` that HorovodRunner scripts use; see hvd_keras.runner."""

from hvd_keras.runner.horovod_runner import HorovodRunner

__all__ = ["HorovodRunner"]
