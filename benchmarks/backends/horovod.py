"""Horovod 0.28, whose last TensorFlow is 2.15, with Keras 2."""

from __future__ import annotations

import horovod
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras2
import tensorflow as tf

from benchmarks.backends.horovod_api import HorovodApi


class Horovod(HorovodApi):
    def versions(self) -> dict[str, str]:
        return super().versions() | {"horovod": horovod.__version__}


def connect() -> Horovod:
    return Horovod(hvd, tf.keras, hvd_keras2.DistributedOptimizer, jit=False)
