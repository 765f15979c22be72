"""``sparkdl.horovod``: messages to the driver."""

from hvd_keras.runner.driver_log import log_to_driver

__all__ = ["log_to_driver"]
