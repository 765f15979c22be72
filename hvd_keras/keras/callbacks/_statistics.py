"""Averaging what layers count on their own rank, like BatchNormalization's moving statistics."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from hvd_keras import collectives, objects
from hvd_keras.keras import _peers

__all__ = ["agree_on"]


def agree_on(variables: list[Any], root_rank: int) -> None:
    """Makes variables equal on all ranks: floats get their mean, others the root's value.

    Moving statistics are linear in the batches they are made of, so their mean is what averaging
    in every step would have given. Variables that are equal already are not touched, since a mean
    of n equal numbers may be off by a rounding.

    Args:
        variables: Keras variables, the same on every rank.
        root_rank: the rank whose integers and booleans count.
    """
    if not variables:
        return
    arrays = [np.ascontiguousarray(v.numpy()) for v in variables]
    sums = _peers.gather([zlib.crc32(array.tobytes()) for array in arrays], "statistics")
    differ = [i for i, column in enumerate(zip(*sums, strict=True)) if len(set(column)) > 1]
    # bfloat16 is not among NumPy's own kinds of float.
    counted = [variables[i] for i in differ if arrays[i].dtype.kind in "iub"]
    if counted:
        objects.broadcast_variables(counted, root_rank=root_rank)
    _average([(variables[i], arrays[i]) for i in differ if arrays[i].dtype.kind not in "iub"])


def _average(pairs: list[tuple[Any, np.ndarray]]) -> None:
    if not pairs:
        return
    flat = np.concatenate([array.ravel().astype(np.float64) for _, array in pairs])
    mean = np.asarray(
        collectives.allreduce(flat, op=collectives.Average, name="hvd.callbacks.statistics.mean")
    )
    for variable, array in pairs:
        own, mean = mean[: array.size], mean[array.size :]
        variable.assign(own.reshape(array.shape).astype(array.dtype))
