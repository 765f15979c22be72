"""Ending the epochs of ``fit`` on all ranks together.

Ranks need not have equally many batches. One that has no more, or whose callback has ended the
epoch, joins: the others go on among themselves, and their averages are those of the ranks still
training. When the last has joined, before validation, all ranks take the variables of the one that
has made the most steps. So every rank validates, saves and continues with the same model. Where all
have made equally many steps their weights must be equal already; if not, a warning says so, once in
a ``fit``.

At the end of the epoch, after the callbacks, the ranks agree on ``model.stop_training``, which
``EarlyStopping`` and the like set from one rank's values: a rank that went on alone would wait for
those that have stopped.

No callback is in the right place for this, so Keras's list of callbacks does it. Where neither a
distributed optimizer nor ``BroadcastGlobalVariablesCallback`` takes part nothing changes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hvd_keras import collectives, objects, world
from hvd_keras.keras import _peers, _values, _versions, diverged
from hvd_keras.keras._distributed import distributed_in
from hvd_keras.keras._variables import (
    accumulators_of,
    identity,
    left_to_ranks,
    shared_variables,
)
from hvd_keras.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from hvd_keras.process_sets import ProcessSet, global_process_set

__all__ = ["end_of_data", "install"]

# The epochs that are under way, of models whose ranks train together.
_under_way: weakref.WeakKeyDictionary[keras.Model, _Epoch] = weakref.WeakKeyDictionary()


@functools.cache
def install(keras: Any) -> None:
    """Changes the ``callbacks.CallbackList`` of a Keras module, once."""
    cls = keras.callbacks.CallbackList
    cls.on_epoch_begin = _opening(cls.on_epoch_begin)
    cls.on_train_batch_end = _after_last_batch(cls.on_train_batch_end)
    cls.on_test_begin = _before_validation(cls.on_test_begin)
    cls.on_epoch_end = _closing(cls.on_epoch_end)


def _opening(original: Callable) -> Callable:
    @functools.wraps(original)
    def on_epoch_begin(self: Any, epoch: int, logs: dict | None = None) -> None:
        self._hvd_epoch = _Epoch.of(self)
        if self._hvd_epoch is not None:
            _under_way[self.model] = self._hvd_epoch
        original(self, epoch, logs)

    return on_epoch_begin


def _after_last_batch(original: Callable) -> Callable:
    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: dict | None = None) -> None:
        original(self, batch, logs)
        steps = (self.params or {}).get("steps")
        if steps and batch + 1 >= steps:
            _end_of_data(self)

    return on_train_batch_end


def _before_validation(original: Callable) -> Callable:
    # Where Keras does not know the number of batches this is the first that is heard of their end.
    @functools.wraps(original)
    def on_test_begin(self: Any, logs: dict | None = None) -> None:
        _end_of_data(self)
        original(self, logs)

    return on_test_begin


def _closing(original: Callable) -> Callable:
    @functools.wraps(original)
    def on_epoch_end(self: Any, epoch: int, logs: dict | None = None) -> None:
        _end_of_data(self)
        original(self, epoch, logs)
        current = getattr(self, "_hvd_epoch", None)
        if current is not None:
            _under_way.pop(self.model, None)
            current.agree_to_stop()

    return on_epoch_end


def end_of_data(model: keras.Model) -> None:
    """Says that this rank has no more data in the model's current epoch, if there is one."""
    current = _under_way.get(model)
    if current is not None:
        current.end_of_data()


def _end_of_data(callback_list: Any) -> None:
    current = getattr(callback_list, "_hvd_epoch", None)
    if current is not None:
        current.end_of_data()


class _Epoch:
    """One epoch of this rank's ``fit``.

    Args:
        model: what is trained.
        process_set: the ranks that train it together; None where that cannot be said, since its
            optimizers have different ones.
        broadcasters: the callbacks that keep the ranks' moving statistics together.
        has_warned: whether the user has been told that the ranks' weights differ.
    """

    def __init__(
        self,
        model: Any,
        process_set: ProcessSet | None,
        broadcasters: list[BroadcastGlobalVariablesCallback],
        has_warned: bool = False,
    ) -> None:
        self._model = model
        self._process_set = process_set
        self._broadcasters = broadcasters
        self._has_warned = has_warned
        # In a graph of Keras 2 all ranks must have equally many batches.
        self._has_data = not _values.in_graph()

    @classmethod
    def of(cls, callback_list: Any) -> _Epoch | None:
        """Returns the epoch that begins, or None where this rank trains for itself."""
        model = getattr(callback_list, "model", None)
        if model is None or not world.is_initialized() or world.size() == 1:
            return None
        broadcasters = [
            callback
            for callback in callback_list.callbacks
            if isinstance(callback, BroadcastGlobalVariablesCallback)
        ]
        sets = {
            id(optimizer.process_set): optimizer.process_set
            for optimizer in map(distributed_in, _peers.optimizers_of(model))
            if optimizer is not None
        }
        if not sets and not broadcasters:
            return None
        process_set = next(iter(sets.values()), global_process_set)
        before = getattr(callback_list, "_hvd_epoch", None)
        return cls(
            model,
            process_set if len(sets) <= 1 else None,
            broadcasters,
            before is not None and before._has_warned,
        )

    def end_of_data(self) -> None:
        """Joins, and makes the models equal; what comes after the first call does nothing."""
        if not self._has_data:
            return
        self._has_data = False
        if self._process_set is not None:
            collectives.join(self._process_set)
            self._share_the_longest(self._process_set)
        for callback in self._broadcasters:
            callback.agree_on_statistics()

    def agree_to_stop(self) -> None:
        if self._process_set is None:
            return
        by_rank = objects.allgather_object(
            bool(self._model.stop_training),
            name="fit.stop_training",
            process_set=self._process_set,
        )
        self._model.stop_training = any(by_rank)

    def _share_the_longest(self, ranks: ProcessSet) -> None:
        """Gives all ranks the variables of the one that has made the most steps."""
        optimizers = _peers.optimizers_of(self._model)
        made = [_batches(optimizer) for optimizer in optimizers]
        local = left_to_ranks(self._model).union(*(c.local_ids for c in self._broadcasters))
        sums = [] if self._has_warned else diverged.checksums(self._model, local)
        told = objects.allgather_object((made, sums), name="fit.steps", process_set=ranks)
        by_rank = [steps for steps, _ in told]
        if all(steps == by_rank[0] for steps in by_rank):
            self._has_warned |= diverged.warn_if_different(
                self._model, local, [sums for _, sums in told], ranks.ranks
            )
            return
        longest = max(range(len(by_rank)), key=lambda i: (sum(by_rank[i]), -i))
        # What training changes without a gradient is not the longest rank's alone.
        local |= {identity(v) for v in self._model.non_trainable_weights}
        objects.broadcast_variables(
            shared_variables(self._model, local), ranks.ranks[longest], process_set=ranks
        )
        for optimizer, own, count in zip(optimizers, made, by_rank[longest], strict=True):
            if _versions.is_keras2(optimizer):
                accumulator = _accumulator(optimizer)
                if accumulator is not None:
                    accumulator.go_on_after(count)
                continue
            passes = getattr(optimizer, "gradient_accumulation_steps", None)
            if passes and own % passes != count % passes:
                # With the next batches' gradients these would be more than one update's.
                for variable in accumulators_of(optimizer):
                    variable.assign(np.zeros(variable.shape, variable.dtype))


def _batches(optimizer: Any) -> int:
    """How many batches the optimizer has seen."""
    # `iterations` counts updates, where gradients are accumulated.
    if _versions.is_keras2(optimizer):
        accumulator = _accumulator(optimizer)
        return int(optimizer.iterations.numpy()) if accumulator is None else accumulator.batches
    counter = getattr(optimizer, "_iterations", optimizer.iterations)
    return int(keras.ops.convert_to_numpy(counter))


def _accumulator(optimizer: Any) -> Any:
    """What an optimizer of Keras 2 adds up gradients in, or None."""
    return getattr(_versions.innermost(optimizer), "_hvd_accumulator", None)
