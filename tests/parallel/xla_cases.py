"""What the tests of functions that XLA compiles share."""

import numpy as np
import tensorflow as tf

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
TOTAL = sum(range(1, SIZE + 1))

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def graph(function, *arguments):
    return tf.function(function)(*arguments)


def jit(function, *arguments):
    return tf.function(function, jit_compile=True)(*arguments)


def mixed(function, *arguments):
    """Compiled on the last rank alone."""
    return (jit if RANK == SIZE - 1 else graph)(function, *arguments)


def values(dtype="float32", rank=RANK):
    """[6, 2], different on every rank, and exact in every type."""
    numbers = np.arange(12).reshape(6, 2) % 4 + rank + 1
    return tf.constant(numbers % 2 == 0 if dtype == "bool" else numbers, dtype)


def as_bytes(results):
    return [(t.dtype, t.shape, t.numpy().tobytes()) for t in tf.nest.flatten(results)]


def assert_as_in_a_graph(function, *arguments):
    """Compiled, and compiled on one rank alone, the results are the same to the last bit."""
    expected = as_bytes(graph(function, *arguments))
    assert as_bytes(jit(function, *arguments)) == expected
    assert as_bytes(mixed(function, *arguments)) == expected


def collectives():
    from hvd_keras import _library

    return _library.core.stats()["collectives"]
