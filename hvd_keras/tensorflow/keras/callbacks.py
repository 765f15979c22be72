"""The same names as ``hvd_keras.keras.callbacks``."""

from hvd_keras.keras.callbacks import *  # noqa: F403
from hvd_keras.keras.callbacks import __all__  # noqa: F401
