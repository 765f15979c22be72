"""Which variables of a model and its optimizers all ranks have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import keras

from hvd_keras.keras import _peers, _versions
from hvd_keras.keras._distributed import distributed_in

__all__ = ["accumulators_of", "identity", "left_to_ranks", "shared_variables"]


def identity(variable: Any) -> int:
    """One number for a Keras variable and for the tf.Variable inside it."""
    return id(variable.value if isinstance(variable, keras.Variable) else variable)


def shared_variables(model: Any, local_ids: Collection[int] = ()) -> list[Any]:
    """Returns the variables that are to be equal on all ranks, in the same order on each.

    These are the weights and the optimizers' variables, without what an optimizer has accumulated
    and not sent, and without those of ``local_ids`` (numbers made by ``identity``).
    """
    candidates = list(model.weights)
    local = set(local_ids)
    for optimizer in _peers.optimizers_of(model):
        candidates += _versions.optimizer_variables(optimizer)
        local |= {identity(v) for v in accumulators_of(optimizer)}
    unique = {id(variable): variable for variable in candidates}
    return [variable for variable in unique.values() if identity(variable) not in local]


def accumulators_of(optimizer: Any) -> list[Any]:
    """Returns the variables in which the optimizer, or an inner one, adds up gradients."""
    own = getattr(optimizer, "_accumulated_gradients", None) or ()
    inner = getattr(optimizer, "inner_optimizer", None)
    return [v for v in own if v is not None] + (accumulators_of(inner) if inner else [])


def left_to_ranks(model: Any) -> set[int]:
    """Returns the identities of what the optimizers leave to each rank: variables and slots."""
    left = set()
    for optimizer in _peers.optimizers_of(model):
        distributed = distributed_in(optimizer)
        for local in distributed.hvd_local_variables if distributed is not None else ():
            left.add(identity(local))
            left |= {identity(slot) for slot in _versions.slots_of(optimizer, local)}
    return left
