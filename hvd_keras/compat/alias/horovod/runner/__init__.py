"""``horovod.run``: a function as a job on this machine."""

from hvd_keras.compat.runner import run

__all__ = ["run"]
