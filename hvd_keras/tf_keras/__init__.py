"""The names of ``hvd_keras.keras`` for scripts that use Keras 2 next to Keras 3.

``hvd_keras`` itself takes the optimizers, models and callbacks of both. Where it has to make
something itself (a layer, a checkpoint, an optimizer that is given by its name) it makes that of
the Keras that ``tf.keras`` is; this module makes that of Keras 2. It imports ``tf_keras``.
"""

from __future__ import annotations

import importlib
from typing import Any

import tf_keras as _tf_keras

from hvd_keras import keras as _keras
from hvd_keras.keras import *  # noqa: F403
from hvd_keras.keras import __all__  # noqa: F401


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any, *args: Any, **kwargs: Any
) -> Any:
    """``hvd_keras.DistributedOptimizer``; a name stands for an optimizer of Keras 2."""
    return _keras.DistributedOptimizer(_by_name(optimizer), *args, **kwargs)


def PartialDistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any, *args: Any, **kwargs: Any
) -> Any:
    """``hvd_keras.PartialDistributedOptimizer``; a name stands for an optimizer of Keras 2."""
    return _keras.PartialDistributedOptimizer(_by_name(optimizer), *args, **kwargs)


def _by_name(optimizer: Any) -> Any:
    return _tf_keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer


callbacks = importlib.import_module(f"{__name__}.callbacks")
SyncBatchNormalization = importlib.import_module("hvd_keras.keras.sync_batch_norm").class_for(
    _tf_keras
)
