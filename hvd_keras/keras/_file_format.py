"""Which Keras a file with a model is for."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

import h5py
import keras

from hvd_keras.keras import _versions

__all__ = ["is_hdf5", "keras_for", "restore_from_folder"]


def is_hdf5(path: str | os.PathLike) -> bool:
    """Returns whether a file of this name has the legacy format."""
    return os.fspath(path).endswith((".h5", ".hdf5"))


def keras_for(path: str | os.PathLike) -> Any:
    """Returns the module that is to load the model: the one that has written it.

    Keras 2 only where the program has imported it. Where the file does not say, or cannot be read
    from here, the Keras that ``tf.keras`` is.
    """
    default = _versions.default_keras()  # before the next, since it may import Keras 2
    keras2 = _versions.tf_keras()
    if keras2 is None:
        return keras
    if os.path.isdir(path):
        return keras2  # a SavedModel; Keras 3 loads no models from them
    version = _version(path)
    if version is None:
        return default
    return keras2 if version.startswith("2.") else keras


def _version(path: str | os.PathLike) -> str | None:
    """The release of Keras that has written the file; None if it does not say."""
    try:
        if is_hdf5(path):
            with h5py.File(path, "r") as file:
                version = file.attrs.get("keras_version")
        else:
            with zipfile.ZipFile(path) as archive:
                version = json.loads(archive.read("metadata.json"))["keras_version"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    return version.decode() if isinstance(version, bytes) else version


def restore_from_folder(model: Any, path: str | os.PathLike) -> None:
    """Gives a model of Keras 2 that comes from a SavedModel the optimizer's variables.

    They are in the folder, but Keras 2 looks for them before the optimizer has made them.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    _versions.build(optimizer, model.trainable_variables)
    model.load_weights(os.path.join(path, "variables", "variables")).expect_partial()
