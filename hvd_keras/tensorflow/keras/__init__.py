"""The same names as ``hvd_keras.keras``, where ``horovod.tensorflow.keras`` has them."""

from hvd_keras.keras import *  # noqa: F403
from hvd_keras.keras import __all__, callbacks  # noqa: F401
