"""Backends: the libraries that the suite measures, each behind the same few functions.

A module here has ``connect()``, which joins the job and returns a ``Backend``. It is imported in
the interpreter of its library alone.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Function = Callable[[], object]
Shape = tuple[int, ...]


class Backend:
    """A library in one rank.

    Attributes:
        rank, size: this rank, and the number of ranks.
        dtypes: names of the types that ``allreduce`` is measured with.
    """

    rank: int
    size: int
    dtypes: tuple[str, ...] = ("float32",)

    def versions(self) -> dict[str, str]:
        """What was measured."""
        return {"python": platform.python_version(), "numpy": np.__version__}

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        raise NotImplementedError

    def close(self) -> None:
        """Leaves the job."""

    def allreduce(self, nbytes: int, dtype: str, repeat: int) -> dict[str, Function]:
        """Allreduces of a tensor of ``nbytes``, by variant.

        Each function does ``repeat`` of them, one after the other, and returns when the last has
        ended. For graphs there are two functions, ``NAME, one`` with one and ``NAME, chain`` with
        1 + ``repeat`` allreduces: the difference is without the cost of the call of a graph.
        """
        raise NotImplementedError

    def gradient_set(self, shapes: Sequence[Shape]) -> dict[str, Function]:
        """Functions that average float32 tensors of these shapes once, by variant."""
        raise NotImplementedError

    def memcpy(self, sizes: Sequence[int], repeat: int) -> Function:
        """Copies arrays of so many bytes, ``repeat`` times."""
        pairs = [(np.ones(n, np.uint8), np.ones(n, np.uint8)) for n in sizes]

        def copy() -> None:
            for _ in range(repeat):
                for target, source in pairs:
                    np.copyto(target, source)

        return copy


class TrainingBackend(Backend):
    """One with which Keras's ``fit`` averages gradients.

    Attributes:
        keras: the Keras that it works with.
    """

    keras: Any

    def plain_model(self, build: Callable[[Any], Any]) -> Any:
        """A compiled model that does not exchange anything."""
        model = build(self.keras)
        self._compile(model, self.keras.optimizers.SGD(0.01))
        return model

    def parallel_model(self, build: Callable[[Any], Any]) -> Any:
        """A compiled model whose gradients are averaged."""
        raise NotImplementedError

    def dataset(self, x: Any, y: Any, steps: int, parallel: bool) -> Any:
        """``steps`` times the batch (x, y); ``parallel``: for a model of ``parallel_model``."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensors((x, y)).repeat(steps)

    @staticmethod
    def _compile(model: Any, optimizer: Any) -> None:
        model.compile(optimizer, loss="sparse_categorical_crossentropy", jit_compile=False)
