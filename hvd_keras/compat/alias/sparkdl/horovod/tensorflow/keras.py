"""``sparkdl.horovod.tensorflow.keras``: the callback that logs to the driver."""

from hvd_keras.runner.log_callback import LogCallback

__all__ = ["LogCallback"]
