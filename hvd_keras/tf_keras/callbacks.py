"""The names of ``hvd_keras.callbacks`` for Keras 2."""

import tf_keras as _tf_keras

from hvd_keras.keras.callbacks import *  # noqa: F403
from hvd_keras.keras.callbacks import __all__  # noqa: F401
from hvd_keras.keras.callbacks import best_model as _best_model
from hvd_keras.keras.callbacks import checkpoint as _checkpoint

BestModelCheckpoint = _best_model.class_for(_tf_keras)
RankZeroModelCheckpoint = _checkpoint.class_for(_tf_keras)
