"""The progress bar of ``fit``, ``evaluate`` and ``predict``: on the first rank only.

The ranks' bars would be mixed on one terminal. The first of the ranks that train together keeps it,
whatever ``verbose`` says on the others; their other output stays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hvd_keras import world
from hvd_keras.keras import _peers
from hvd_keras.keras._distributed import distributed_in

__all__ = ["install"]


@functools.cache
def install(keras: Any) -> None:
    """Changes the ``callbacks.CallbackList`` of a Keras module, once. Without a distributed
    optimizer nothing changes."""
    cls = keras.callbacks.CallbackList
    cls.__init__ = _on_first_rank(cls.__init__)


def _on_first_rank(original: Callable) -> Callable:
    @functools.wraps(original)
    def __init__(
        self: Any,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        add_progbar = add_progbar and not _has_peer_before(model)
        original(self, callbacks, add_history, add_progbar, model, **params)

    return __init__


def _has_peer_before(model: Any) -> bool:
    """Whether the model is trained with others, and this is not the first of these ranks."""
    if model is None or not world.is_initialized():
        return False
    distributed = map(distributed_in, _peers.optimizers_of(model))
    return any(
        optimizer.process_set.ranks[0] != world.rank()
        for optimizer in distributed
        if optimizer is not None
    )
