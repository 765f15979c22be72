"""hvd_keras."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

import hvd_keras as hvd
from benchmarks.backends import Function
from benchmarks.backends.horovod_api import HorovodApi
from hvd_keras.gradients import reduce_gradients


class Ours(HorovodApi):
    dtypes = ("float32", "float16", "bfloat16")

    def averages(self, variables: Sequence[tf.Variable]) -> dict[str, Function]:
        @tf.function
        def in_buckets() -> list[tf.Tensor]:
            return reduce_gradients([variable.value() for variable in variables], variables)

        return super().averages(variables) | {"in buckets": in_buckets}


def connect() -> Ours:
    return Ours(hvd, keras, hvd.DistributedOptimizer, jit=True)
