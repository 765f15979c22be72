"""Compiles a model from a legacy ``.h5`` file, with the optimizer's slots.

Keras 3 writes this format well, but when it reads it builds the optimizer for no variables at all,
so the slots are lost and the next ``fit`` fails, and it does not know losses given as a short name
("mse"). The rest, the layers and their weights, it reads correctly.
"""

from __future__ import annotations

import json
import os
from typing import Any

import h5py
import keras

__all__ = ["compile_from_file"]


def compile_from_file(
    model: keras.Model, filepath: str | os.PathLike, custom_objects: dict[str, Any]
) -> None:
    """Compiles ``model`` as the one in the file was, and restores the optimizer's variables.

    Does nothing if that model was not compiled.

    Args:
        model: a model that was loaded from the file, with its weights.
        filepath: the file.
        custom_objects: classes and functions by name.

    Raises:
        ValueError: the optimizer in the file does not fit the model.
    """
    with h5py.File(filepath, "r") as file, keras.saving.custom_object_scope(custom_objects):
        text = file.attrs.get("training_config")
        if text is None:
            return
        config = json.loads(text)
        optimizer = keras.optimizers.deserialize(config.pop("optimizer_config"))
        config["loss"] = _objects(config.get("loss"), keras.losses.deserialize)
        for kind in ("metrics", "weighted_metrics"):
            config[kind] = _objects(config.get(kind), keras.metrics.deserialize)
        model.compile(optimizer=optimizer, **config)
        if "optimizer_weights" in file:
            model.optimizer.build(model.trainable_variables)
            _restore(model.optimizer, file["optimizer_weights"])


def _objects(config: Any, deserialize: Any) -> Any:
    """Makes objects of configurations; names stay names, which ``compile`` understands."""
    if isinstance(config, dict) and "class_name" in config:
        return deserialize(config)
    if isinstance(config, dict):
        return {key: _objects(value, deserialize) for key, value in config.items()}
    if isinstance(config, list):
        return [_objects(value, deserialize) for value in config]
    return config


def _restore(optimizer: keras.optimizers.Optimizer, group: h5py.Group) -> None:
    saved = [group[name] for name in _names(group)]
    shapes = [tuple(dataset.shape) for dataset in saved]
    expected = [tuple(variable.shape) for variable in optimizer.variables]
    if shapes != expected:
        raise ValueError(
            f"the optimizer in {group.file.filename} does not fit the model: its variables have "
            f"the shapes {shapes}, expected {expected}"
        )
    for variable, dataset in zip(optimizer.variables, saved, strict=True):
        variable.assign(dataset[()])


def _names(group: h5py.Group) -> list[str]:
    """The names in the attribute "weight_names", which is cut in pieces if it is large."""
    pieces = [group.attrs["weight_names"]] if "weight_names" in group.attrs else []
    while f"weight_names{len(pieces)}" in group.attrs:
        pieces.append(group.attrs[f"weight_names{len(pieces)}"])
    return [n.decode() if isinstance(n, bytes) else str(n) for piece in pieces for n in piece]
