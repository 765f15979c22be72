"""The names of ``hvd_keras.callbacks`` for Keras 2."""

import tf_keras as _tf_keras

from hvd_keras.keras.callbacks import *  # noqa: F403
from hvd_keras.keras.callbacks import __all__  # noqa: F401
from hvd_keras.keras.callbacks.checkpoint import class_for as _class_for

RankZeroModelCheckpoint = _class_for(_tf_keras)
