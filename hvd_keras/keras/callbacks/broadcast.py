"""BroadcastGlobalVariablesCallback: all ranks start from the variables of one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_keras import objects, world
from hvd_keras.keras import _peers, _values
from hvd_keras.keras._variables import identity, shared_variables
from hvd_keras.keras.callbacks._base import Callback
from hvd_keras.keras.callbacks._building import build_from_data, build_without_data
from hvd_keras.keras.callbacks._statistics import agree_on

__all__ = ["BroadcastGlobalVariablesCallback"]

# Odd, so that rank * factor differs for all ranks modulo 2**32; the golden ratio spreads them.
_SEED_STRIDE = 0x9E3779B1


class BroadcastGlobalVariablesCallback(Callback):
    """Gives every rank the variables of ``root_rank`` before ``fit`` makes its first update.

    These are the model's weights (with moving statistics) and the optimizer's variables
    (iteration count, learning rate, slots). It happens in each ``fit``, so that weights which rank
    0 alone has restored or changed reach the others too. Where they exist already, the variables
    are sent when training begins; in any case they are sent right before the first step: after
    whatever other callbacks did in ``on_train_begin``, in any order, and after a model that is
    built on its first batch has been built (by tracing ``train_step`` for the data's spec; nothing
    is computed).

    Not sent: metrics, gradient accumulators, ``local_variables`` and the states of random seed
    generators. Dropout masks shall differ by rank: where a generator has the *same* state on all
    ranks (after ``keras.utils.set_random_seed(1)``, say), the seeds of ranks other than the root
    are changed, in the same way every time.

    What training changes without a gradient, BatchNormalization's moving statistics for example,
    comes to differ by rank. At the end of each epoch, before validation, it is replaced by its mean
    over ranks, so that all ranks have the same model, which is the one that rank 0 saves.

    All of it runs in Keras's main thread, as ``on_train_begin`` and the train function do, so other
    callbacks may still be dispatched to a thread (this one has no batch-end hook).

    Args:
        root_rank: the rank whose variables count.
        device: a TensorFlow device for the transfer; '' lets TensorFlow choose.
        local_variables: variables that stay as they are on each rank; see
            ``register_local_var``.

    Raises (on every rank, from ``fit``):
        ValueError: the ranks' models do not have the same variables, or ``root_rank`` does not
            exist.
        RuntimeError: a model that is not built runs in a loop of one's own, or builds some of
            its variables so late that they were missed.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.local_ids: set[int] = set()
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, variable: Any) -> None:
        """Leaves ``variable`` (a Keras variable or tf.Variable) as it is on each rank."""
        self.local_ids.add(identity(variable))

    def on_train_begin(self, logs: dict | None = None) -> None:
        if not 0 <= self.root_rank < world.size():
            raise ValueError(
                f"BroadcastGlobalVariablesCallback: root_rank={self.root_rank} does not exist; "
                f"expected 0 <= root_rank < size = {world.size()}"
            )
        if _values.in_graph():
            self._broadcast_in_session()
            return
        _unwrap_step(self.model)
        # The root may have loaded its model, while the others build theirs on the first batch.
        if all(_peers.gather(build_without_data(self.model), "begin")):
            self._broadcast()
        _wrap_next_step(self.model, self._first_step)

    def agree_on_statistics(self) -> None:
        """Makes equal on all ranks what training changes without a gradient."""
        variables = self.model.non_trainable_weights
        agree_on([v for v in variables if identity(v) not in self.local_ids], self.root_rank)

    def _first_step(self, run_step: Callable, iterator: Any) -> Any:
        iterator, built = build_from_data(self.model, iterator)
        everywhere = _peers.gather(built, "built")
        if all(everywhere):
            sent = self._broadcast()
            logs = run_step(iterator)
            self._require_all_sent(sent)
        elif any(everywhere):
            raise ValueError(
                "BroadcastGlobalVariablesCallback: the model could be built before its first step "
                f"on some ranks only ({_peers.by_rank(everywhere)}); all ranks must run the same "
                "model, or build it before fit()"
            )
        else:
            warnings.warn(
                "The model could not be built before its first step (with run_eagerly=True this "
                "takes a working call()), so its variables are broadcast after that step, for "
                "which each rank has used its own. Build the model before fit() to avoid this.",
                stacklevel=2,
            )
            logs = run_step(iterator)
            self._broadcast()
        return logs

    def _broadcast(self) -> list[Any]:
        """Sends the variables; returns which."""
        variables = shared_variables(self.model, self.local_ids)
        self._check_peers(variables)
        with tf.device(self.device) if self.device else contextlib.nullcontext():
            objects.broadcast_variables(variables, root_rank=self.root_rank)
        return variables

    def _broadcast_in_session(self) -> None:
        """Sends the variables of a model of Keras 2 in a graph, where all exist already."""
        variables = shared_variables(self.model, self.local_ids)
        values = _values.read(variables)
        shapes = [(value.shape, str(value.dtype)) for value in values]
        _require_same_variables(_peers.gather(shapes, "broadcast"), variables)
        values = objects.broadcast_object(values, self.root_rank, name="hvd.callbacks.session")
        _values.write(variables, values)

    def _check_peers(self, variables: list[Any]) -> None:
        """All ranks compare what they are about to do, and spread the seeds that are equal."""
        seeds = _seed_states(self.model)
        shapes = [(tuple(v.shape), str(v.dtype)) for v in variables]
        peers = _peers.gather((shapes, [s.tobytes() for _, s in seeds]), "broadcast")
        _require_same_variables([shapes for shapes, _ in peers], variables)
        _spread_seeds(seeds, [states for _, states in peers], self.root_rank)

    def _require_all_sent(self, sent: list[Any]) -> None:
        known = {id(variable) for variable in sent}
        late = [
            getattr(v, "path", v.name)
            for v in self.model.weights
            if id(v) not in known and identity(v) not in self.local_ids
        ]
        if late:
            raise RuntimeError(
                f"{len(late)} variables were created during the first training step, too late to "
                f"be broadcast, so they differ by rank: {', '.join(late[:5])}"
                f"{', ...' if len(late) > 5 else ''}. Build the model before fit()"
            )


def _wrap_next_step(model: keras.Model, around: Callable[[Callable, Any], Any]) -> None:
    """Makes ``fit`` run its next step through ``around(run_step, iterator)``."""
    run_step = getattr(model, "train_function", None)
    if run_step is None:
        if not model.built:
            raise RuntimeError(
                "BroadcastGlobalVariablesCallback found a model that is neither built nor trained "
                "by fit(): build it first, or call hvd.broadcast_variables() after the first step"
            )
        return

    def next_step(iterator: Any) -> Any:
        model.train_function = run_step
        return around(run_step, iterator)

    next_step.run_step = run_step  # type: ignore[attr-defined]
    model.train_function = next_step


def _unwrap_step(model: keras.Model) -> None:
    """Takes out what a ``fit`` that failed before its next step has left."""
    while hasattr(getattr(model, "train_function", None), "run_step"):
        model.train_function = model.train_function.run_step


def _require_same_variables(by_rank: list[list[tuple]], mine: list[Any]) -> None:
    if len({len(shapes) for shapes in by_rank}) > 1:
        counts = _peers.by_rank(f"{len(shapes)} variables" for shapes in by_rank)
        raise ValueError(
            f"The ranks' models and optimizers differ: {counts}. Make the same model, and compile "
            "it with the same optimizer, on all ranks"
        )
    for index, variants in enumerate(zip(*by_rank, strict=True)):
        if len(set(variants)) > 1:
            shapes = _peers.by_rank(f"{dtype}{list(shape)}" for shape, dtype in variants)
            name = getattr(mine[index], "path", mine[index].name)
            raise ValueError(
                f"The ranks' models differ: variable number {index} ({name!r} on rank "
                f"{world.rank()}) is {shapes}. Make the same model on all ranks"
            )


def _seed_states(model: keras.Model) -> list[tuple[Any, np.ndarray]]:
    """The model's random seed generators: variables that are not weights, each (seed, counter)."""
    weights = {id(variable) for variable in model.weights}
    states = [v for v in model.variables if id(v) not in weights and tuple(v.shape) == (2,)]
    return [(v, np.asarray(v.numpy())) for v in states if "int" in str(v.dtype)]


def _spread_seeds(
    seeds: list[tuple[Any, np.ndarray]], by_rank: list[list[bytes]], root_rank: int
) -> None:
    """Makes the seeds differ by rank where they are the same on all; the root keeps its own."""
    offset = (world.rank() - root_rank) % world.size() * _SEED_STRIDE
    if not offset or len({len(states) for states in by_rank}) > 1:
        return
    for (variable, state), variants in zip(seeds, zip(*by_rank, strict=True), strict=True):
        if len(set(variants)) == 1:
            seed = (int(state[0]) + offset) % 2**32
            # Keras keeps seeds in an integer type of the backend's choice; int32 would overflow.
            limit = np.iinfo(state.dtype).max + 1
            variable.assign(np.array([seed % limit, state[1]], dtype=state.dtype))
