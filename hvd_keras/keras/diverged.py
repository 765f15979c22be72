"""Telling a user whose ranks train models that are not the same.

Averaged gradients keep equal weights equal, bit for bit, and unequal ones as unequal as they were:
where the first broadcast was forgotten, or one rank's callback has changed a learning rate, nothing
fails, and rank 0 saves a model for which most of the gradients were not computed.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np

from hvd_keras import world
from hvd_keras.keras._variables import identity

__all__ = ["checksums", "warn_if_different"]


def checksums(model: Any, local_ids: Collection[int]) -> list[int]:
    """Returns one number for each trainable variable that is to be equal on all ranks.

    Args:
        model: a built model of either Keras.
        local_ids: the numbers, as ``identity`` makes them, of the variables of each rank's own.
    """
    values = (keras.ops.convert_to_numpy(v) for v in _common(model, local_ids))
    return [zlib.crc32(np.ascontiguousarray(value).tobytes()) for value in values]


def warn_if_different(
    model: Any, local_ids: Collection[int], by_rank: Sequence[list[int]], ranks: Sequence[int]
) -> bool:
    """Warns where the ranks' ``checksums`` differ; returns whether they do.

    Args:
        model, local_ids: as for ``checksums``.
        by_rank: what ``checksums`` returned on each of the ranks.
        ranks: which they are.
    """
    if all(sums == by_rank[0] for sums in by_rank):
        return False
    if len({len(sums) for sums in by_rank}) > 1:
        which = "the number of trainable variables"
    else:
        variables = _common(model, local_ids)
        different = [i for i, sums in enumerate(zip(*by_rank, strict=True)) if len(set(sums)) > 1]
        first = variables[different[0]]
        which = (
            f"{len(different)} of {len(variables)} trainable variables, the first of them "
            f"{getattr(first, 'path', first.name)!r},"
        )
    others = [rank for rank, sums in zip(ranks, by_rank, strict=True) if sums != by_rank[0]]
    warnings.warn(
        f"rank {world.rank()}: at the end of an epoch of fit(), {which} of the model "
        f"{model.name!r} on rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} "
        f"differ from those on rank {ranks[0]}. Averaged gradients do not make them equal. Give "
        "fit() the callback hvd.callbacks.BroadcastGlobalVariablesCallback(0), or call "
        "hvd.broadcast_variables(model.weights, root_rank=0) before it; and let no callback change "
        "weights or the learning rate on some ranks only. Variables that are each rank's own "
        "belong in the optimizer's register_local_var()",
        stacklevel=2,
    )
    return True


def _common(model: Any, local_ids: Collection[int]) -> list[Any]:
    return [v for v in model.trainable_variables if identity(v) not in local_ids]
