"""tf.distribute.MultiWorkerMirroredStrategy with Keras 2 (tf_keras), which it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks.backends import Function, Shape, TrainingBackend


class MultiWorkerMirrored(TrainingBackend):
    keras = tf_keras

    def __init__(self) -> None:
        job = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self.rank = job.task_id
        self.size = job.cluster_spec().num_tasks("worker")
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._one = tf.constant([1.0])
        self._meet = self._reduction(lambda: [self._one], 1)

    def versions(self) -> dict[str, str]:
        return super().versions() | {
            "tensorflow": tf.__version__,
            "tf_keras": tf_keras.__version__,
        }

    def barrier(self) -> None:
        self._meet()

    def _reduction(self, values: Callable[[], list[tf.Tensor]], length: int) -> Function:
        """A tf.function with ``length`` all_reduce, each of the result of the one before."""
        mean = tf.distribute.ReduceOp.MEAN

        def replica() -> list[tf.Tensor]:
            tensors = values()
            for _ in range(length):
                context = tf.distribute.get_replica_context()
                tensors = context.all_reduce(mean, tensors)
            return tensors

        return tf.function(lambda: self.strategy.run(replica))

    def allreduce(self, nbytes: int, dtype: str, repeat: int) -> dict[str, Function]:
        x = tf.ones([max(1, nbytes // 4)])
        return {
            "tf.function, one": self._reduction(lambda: [x], 1),
            "tf.function, chain": self._reduction(lambda: [x], 1 + repeat),
        }

    def gradient_set(self, shapes: Sequence[Shape]) -> dict[str, Function]:
        tensors = [tf.constant(np.ones(shape, np.float32)) for shape in shapes]
        return {"grouped": self._reduction(lambda: tensors, 1)}

    def parallel_model(self, build: Callable[[Any], Any]) -> Any:
        with self.strategy.scope():
            model = build(tf_keras)
            self._compile(model, tf_keras.optimizers.SGD(0.01))
        return model

    def dataset(self, x: Any, y: Any, steps: int, parallel: bool) -> Any:
        if not parallel:
            return super().dataset(x, y, steps, parallel)
        # The strategy divides each batch among the ranks.
        joined = [np.concatenate([part] * self.size) for part in (x, y)]
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return super().dataset(*joined, steps, parallel).with_options(options)


def connect() -> MultiWorkerMirrored:
    return MultiWorkerMirrored()
