"""Creating a model's variables before its first step, in the way that Keras does during it."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import keras
import tensorflow as tf

from hvd_keras.keras import _peers, _versions

__all__ = ["build_from_data", "build_without_data"]


def _all_layers_built(model: keras.Model) -> bool:
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers
    return model.built and all(layer.built for layer in layers)


def build_without_data(model: keras.Model) -> bool:
    """Builds the optimizers where the model is built; returns whether all variables exist now."""
    if not _all_layers_built(model):
        return False
    main = getattr(model, "optimizer", None)
    steps = [cls.train_step for cls in _versions.both("Model")]
    if main is not None and not _versions.is_built(main) and type(model).train_step in steps:
        # What Keras itself does while it traces the first step.
        _versions.build(main, model.trainable_variables)
    return all(_versions.is_built(optimizer) for optimizer in _peers.optimizers_of(model))


def build_from_data(model: keras.Model, iterator: Any) -> tuple[Any, bool]:
    """Builds what is not built yet, for the data that ``iterator`` yields.

    Returns:
        An iterator that yields the same data, and whether the model could be built.
    """
    if build_without_data(model):
        return iterator, True
    if not model.run_eagerly:
        # An error here is one of the user's own step, which would fail in the same way.
        _trace_step(model, iterator.element_spec)
        return iterator, True
    batch = next(iterator)
    return itertools.chain([batch], iterator), _build_by_calling(model, batch)


def _trace_step(model: keras.Model, spec: Any) -> None:
    """Traces ``train_step`` without running it; like Keras's own tracing it makes all variables."""

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> Any:
        return model.train_step(_without_optionals(data))

    tf.function(step, autograph=False).get_concrete_function(spec)


def _without_optionals(data: Any) -> Any:
    """Keras passes None through tf.data as an empty Optional, and takes it out again."""
    return tf.nest.map_structure(
        lambda item: None if isinstance(item, tf.experimental.Optional) else item, data
    )


def _build_by_calling(model: keras.Model, batch: Any) -> bool:
    """For ``run_eagerly``: a step that cannot be traced would leave half-made variables behind.

    An optimizer may stay unbuilt. Its slots begin at the same values on all ranks.
    """
    if type(model).call in [cls.call for cls in _versions.both("Model")]:
        return False
    x, _, _ = keras.utils.unpack_x_y_sample_weight(_without_optionals(batch))
    takes_training = "training" in inspect.signature(model.call).parameters
    try:
        model(x, **({"training": False} if takes_training else {}))
    except Exception:  # whatever the user's code raises; its own step will raise it again
        return False
    build_without_data(model)
    return True
