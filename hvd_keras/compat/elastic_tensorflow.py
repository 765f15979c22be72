"""Elastic states of TensorFlow variables and Keras models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import objects
from hvd_keras.compat.elastic import ObjectState

__all__ = ["TensorFlowKerasState", "TensorFlowState"]


class TensorFlowState(ObjectState):
    """A state of TensorFlow variables, and of Python objects.

    Args:
        variables: the variables; None for all global variables of a ``tf.compat.v1`` graph.
        session: the session that has their values, in a graph; None for the default one.
        **kwargs: see ``ObjectState``.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        if variables is None:
            if tf.executing_eagerly():
                raise ValueError(
                    "TensorFlowState: in eager code there is no list of all variables; pass "
                    "variables=model.variables"
                )
            variables = tf.compat.v1.global_variables()
        self.variables = list(variables)
        self.session = session
        self._ops: Any = None
        super().__init__(**kwargs)
        self._values = self._read()

    def save(self) -> None:
        self._values = self._read()
        super().save()

    def restore(self) -> None:
        self._write(self._values)
        super().restore()

    def sync(self) -> None:
        if tf.executing_eagerly():
            objects.broadcast_variables(self.variables, root_rank=0)
        else:
            self._write(objects.broadcast_object(self._read(), root_rank=0))
        self._values = self._read()
        super().sync()

    def _session(self) -> Any:
        return self.session or tf.compat.v1.get_default_session()

    def _read(self) -> list[np.ndarray]:
        if tf.executing_eagerly():
            return [np.array(v.numpy()) for v in self.variables]
        return self._session().run(self.variables)

    def _write(self, values: list[np.ndarray]) -> None:
        if tf.executing_eagerly():
            for variable, value in zip(self.variables, values, strict=True):
                variable.assign(value)
        else:
            for variable, value in zip(self.variables, values, strict=True):
                variable.load(value, self._session())


class TensorFlowKerasState(ObjectState):
    """A state of a Keras model, its optimizer, and of Python objects.

    Args:
        model: a built model.
        optimizer: None for the one that the model was compiled with.
        backend: taken for compatibility.
        **kwargs: see ``ObjectState``.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        del backend
        if not model.built:
            raise ValueError(
                f"{type(self).__name__}: the model has no weights yet; build it first, for "
                "example by calling it on a batch"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)
        self._values = self._read()

    def save(self) -> None:
        self._values = self._read()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        objects.broadcast_variables(self._variables(), root_rank=0)
        self._values = self._read()
        super().sync()

    def _variables(self) -> list[Any]:
        """Weights, then what the optimizer has; the latter first come with its first step."""
        optimizer = self.optimizer
        if optimizer is None:
            return list(self.model.weights)
        from hvd_keras.keras import _versions  # late: it imports Keras

        if not _versions.is_built(optimizer):
            _versions.build(optimizer, self.model.trainable_variables)
        return [*self.model.weights, *_versions.optimizer_variables(optimizer)]

    def _read(self) -> list[np.ndarray]:
        return [np.array(v.numpy()) for v in self._variables()]
