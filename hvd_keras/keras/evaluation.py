"""evaluate and predict: each rank works on a part of the data, and all get the whole result."""

from __future__ import annotations

import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_keras import objects, world
from hvd_keras.keras import _peers
from hvd_keras.keras.callbacks.metric_average import average_logs
from hvd_keras.keras.data import shard

__all__ = ["evaluate", "predict"]


def evaluate(model: keras.Model, x: Any = None, y: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Evaluates the model on all ranks' data.

    Args:
        model: a compiled model, the same on all ranks.
        x, y: this rank's part of the data, as for ``model.evaluate`` (see ``hvd.shard``). The parts
            need not be equally long, but none may be empty.
        **kwargs: further arguments of ``model.evaluate``. The progress bar is shown on rank 0 only,
            unless ``verbose`` says otherwise.

    Returns:
        The metrics by name, the same on all ranks: what one process would get for all data (see
        ``MetricAverageCallback`` for how).

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: the ranks' models do not have the same metrics.
    """
    world.require_initialized("hvd.evaluate()")
    kwargs.setdefault("verbose", "auto" if world.rank() == 0 else 0)
    kwargs["return_dict"] = True
    logs = model.evaluate(x, y, **kwargs)
    return average_logs(model, logs) if world.size() > 1 else logs


def predict(model: keras.Model, x: Any, **kwargs: Any) -> Any:
    """Predicts for data that all ranks have, each rank a part of it.

    Args:
        model: the same on all ranks.
        x: the whole data, the same on all ranks: arrays or tensors (or structures of them) of which
            each rank takes every ``size()``-th element, or a batched ``tf.data.Dataset`` of known
            or unknown length, of which it takes every ``size()``-th batch.
        **kwargs: further arguments of ``model.predict``. The progress bar is shown on rank 0 only,
            unless ``verbose`` says otherwise.

    Returns:
        What ``model.predict(x)`` returns, in the order of ``x``, on every rank.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: there is nothing to predict for, or ``x`` is not the same on all ranks (of
            datasets only their number of batches is compared).
    """
    world.require_initialized("hvd.predict()")
    if world.size() == 1:
        return model.predict(x, **kwargs)
    kwargs.setdefault("verbose", "auto" if world.rank() == 0 else 0)
    _require_same(x)
    mine = shard(x, even=False)
    if isinstance(x, tf.data.Dataset):
        # Batches may differ in size, so each is kept apart until all are in order.
        outputs = [model.predict(batch, **{**kwargs, "verbose": 0}) for batch in _inputs(mine)]
    elif len(tf.nest.flatten(mine)[0]) > 0:
        whole = model.predict(mine, **kwargs)
        rows = len(tf.nest.flatten(whole)[0])
        outputs = [_rows(whole, slice(i, i + 1)) for i in range(rows)]
    else:
        outputs = []
    parts = objects.allgather_object(outputs, name="hvd.predict")
    ordered = [
        part[i] for i in range(max(len(part) for part in parts)) for part in parts if i < len(part)
    ]
    if not ordered:
        raise ValueError("hvd.predict(): x is empty on all ranks")
    return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *ordered)


def _require_same(x: Any) -> None:
    """Raises on all ranks where they were given different data, such as each its part."""
    if isinstance(x, tf.data.Dataset):
        mine = [(f"{int(x.cardinality())} batches", 0)]
    else:
        arrays = [np.ascontiguousarray(keras.ops.convert_to_numpy(v)) for v in tf.nest.flatten(x)]
        mine = [(f"{a.dtype}{list(a.shape)}", _checksum(a)) for a in arrays]
    peers = _peers.gather(mine, "predict")
    if all(peer == peers[0] for peer in peers):
        return
    shapes = [", ".join(shape for shape, _ in peer) for peer in peers]
    what = _peers.by_rank(shapes) if len(set(shapes)) > 1 else f"{shapes[0]} of other values"
    raise ValueError(
        "hvd.predict(): x must be the whole data, the same on all ranks, of which each takes its "
        f"part; found {what}. Give it what is not sharded, or use model.predict(x) for the rank's "
        "own part"
    )


def _checksum(array: np.ndarray) -> int:
    # The bytes of an array of objects are addresses.
    return 0 if array.dtype.hasobject else zlib.crc32(array.tobytes())


def _inputs(dataset: tf.data.Dataset) -> Any:
    """The inputs of a model out of (inputs, targets, ...), as ``model.predict`` takes them."""
    for batch in dataset:
        yield batch[0] if isinstance(batch, tuple) else batch


def _rows(outputs: Any, rows: slice) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf[rows], outputs)
