"""What hvd_keras and Horovod have in common: the names of their functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.backends import Function, Shape, TrainingBackend


class HorovodApi(TrainingBackend):
    """A backend around a module with Horovod's functions.

    Args:
        hvd: the module with the collectives.
        keras: the Keras whose optimizers ``wrap`` takes.
        wrap: DistributedOptimizer.
        jit: whether collectives work in functions that XLA compiles.
    """

    def __init__(self, hvd: Any, keras: Any, wrap: Callable[[Any], Any], jit: bool) -> None:
        self.hvd = hvd
        self.keras = keras
        self.jit = jit
        self._wrap = wrap
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        token = tf.constant(0.0)
        self._meet = tf.function(lambda: hvd.allreduce(token, op=hvd.Sum, name="benchmark.meet"))

    def versions(self) -> dict[str, str]:
        return super().versions() | {
            "tensorflow": tf.__version__,
            "keras": metadata.version("keras"),
        }

    def barrier(self) -> None:
        self._meet()

    def close(self) -> None:
        self.hvd.shutdown()

    def allreduce(self, nbytes: int, dtype: str, repeat: int) -> dict[str, Function]:
        x = tf.ones([max(1, nbytes // tf.as_dtype(dtype).size)], dtype)
        name = f"{dtype}.{nbytes}"
        functions: dict[str, Function] = {"eager": lambda: self._eager(x, name, repeat)}
        for variant, jit in [("tf.function", None)] + ([("jit", True)] if self.jit else []):
            for part, length in (("one", 1), ("chain", 1 + repeat)):
                graph = self._graph(f"{name}.{variant}.{part}", length, jit)
                functions[f"{variant}, {part}"] = lambda graph=graph: graph(x)
        return functions

    def _eager(self, x: tf.Tensor, name: str, repeat: int) -> None:
        for _ in range(repeat):
            self.hvd.allreduce(x, op=self.hvd.Average, name=f"eager.{name}")

    def _graph(self, name: str, length: int, jit: bool | None) -> Callable[[tf.Tensor], Any]:
        @tf.function(jit_compile=jit)
        def chain(x: tf.Tensor) -> tf.Tensor:
            for i in range(length):
                x = self.hvd.allreduce(x, op=self.hvd.Average, name=f"{name}.{i}")
            return x

        return chain

    def gradient_set(self, shapes: Sequence[Shape]) -> dict[str, Function]:
        return self.averages([tf.Variable(np.ones(shape, np.float32)) for shape in shapes])

    def averages(self, variables: Sequence[tf.Variable]) -> dict[str, Function]:
        """Functions that average the variables' values, by variant."""

        @tf.function
        def grouped() -> list[tf.Tensor]:
            values = [variable.value() for variable in variables]
            return self.hvd.grouped_allreduce(values, op=self.hvd.Average, name="set")

        return {"grouped": grouped}

    def parallel_model(self, build: Callable[[Any], Any]) -> Any:
        model = build(self.keras)
        self._compile(model, self._wrap(self.keras.optimizers.SGD(0.01)))
        return model
