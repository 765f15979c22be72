"""Arrays given to ``fit`` are shuffled alike on all ranks.

Each rank takes its part of every batch, so the ranks have to have the same batches. Keras shuffles
with ``tf.random.shuffle``, which without a seed gives every rank an order of its own. While Keras
makes the data set, that function is replaced by one with a seed that the ranks have agreed on, and
which changes with every epoch. Where the ranks have the same global seed nothing is replaced: then
the order is that of one process, and reproducible.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf

from hvd_keras import objects
from hvd_keras.distribute.ranks import Ranks

__all__ = ["alike", "new_epoch"]

_local = threading.local()


def new_epoch() -> Callable[[], None] | None:
    """Returns what is to be called when the data set that is being made is read once more.

    None where nothing is.
    """
    return getattr(_local, "new_epoch", None)


@contextlib.contextmanager
def alike(ranks: Ranks) -> Iterator[None]:
    """Within it, in this thread, shuffled arrays become a data set with the same order on all."""
    from tensorflow.python.eager import context

    proposal = (context.global_seed(), random.getrandbits(31))
    proposals = objects.allgather_object(
        proposal, name="strategy.shuffle", process_set=ranks.process_set
    )
    seeds = {seed for seed, _ in proposals}
    if len(seeds) == 1 and None not in seeds:
        yield
        return
    state = tf.Variable([proposals[0][1], 0], dtype=tf.int64, trainable=False)

    def shuffle(value: Any, seed: Any = None, name: Any = None) -> tf.Tensor:
        del seed, name
        return tf.random.experimental.stateless_shuffle(value, state)

    _local.new_epoch = lambda: state.assign_add([0, 1])
    try:
        with mock.patch.object(tf.random, "shuffle", shuffle):
            yield
    finally:
        _local.new_epoch = None
