"""DistributedOptimizer: which gradients reach the variables."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_cases import (
    MEAN,
    OPTIMIZERS,
    RANK,
    SIZE,
    assert_same_on_all_ranks,
    collectives,
    embedding_gradient,
    joined_embedding_gradient,
    mean_gradients,
    model_gradients,
    new_variables,
    steps,
)

import hvd_keras as hvd
from hvd_keras import _library, world


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_equals_the_base_optimizer_on_the_mean_gradient(make, graph):
    mine, reference = new_variables(), new_variables()
    steps(hvd.DistributedOptimizer(make()), lambda s: model_gradients(RANK, s), mine, graph=graph)
    steps(make(), mean_gradients, reference, graph=graph)
    assert_same_on_all_ranks(mine)
    for ours, theirs in zip(mine, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_sum():
    v = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.apply([tf.constant([RANK + 1.0])], [v])
    assert float(v[0]) == -sum(range(1, SIZE + 1))


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.5])
def test_gradient_predivide_factor_does_not_change_the_average(factor):
    v = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), gradient_predivide_factor=factor
    )
    optimizer.apply([tf.constant([RANK + 1.0])], [v])
    np.testing.assert_allclose(float(v[0]), -MEAN, rtol=1e-6)


def test_gradient_predivide_factor_keeps_sums_of_float16_finite():
    v = keras.Variable([0.0], dtype="float16")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), gradient_predivide_factor=float(SIZE)
    )
    optimizer.apply([tf.constant([50000.0], tf.float16)], [v])
    np.testing.assert_allclose(float(v[0]), -50000.0, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_variables_of_all_float_types(dtype):
    v = keras.Variable([0.0, 1.0], dtype=dtype)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([tf.constant([RANK + 1.0, 0.0], dtype)], [v])
    np.testing.assert_allclose(np.asarray(v, "float64"), [-MEAN, 1.0], rtol=1e-2)


def test_compression():
    v = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.fp16
    )
    optimizer.apply([tf.constant([0.1]) * (RANK + 1)], [v])
    assert float(v[0]) != -np.float32(0.1 * MEAN)
    np.testing.assert_allclose(float(v[0]), -0.1 * MEAN, rtol=1e-3)


def test_own_compressor():
    class Doubling:
        @staticmethod
        def compress(tensor):
            return tensor * 2, "context"

        @staticmethod
        def decompress(tensor, context):
            assert context == "context"
            return tensor * 10

    v = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Doubling)
    optimizer.apply([tf.constant([RANK + 1.0])], [v])
    np.testing.assert_allclose(float(v[0]), -20 * MEAN, rtol=1e-6)


def test_missing_gradients_stay_missing():
    a, b = keras.Variable([0.0]), keras.Variable([5.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tf.constant([RANK + 1.0]), None], [a, b])
    assert (float(a[0]), float(b[0])) == (-MEAN, 5.0)


def test_many_buckets(monkeypatch):

    monkeypatch.setattr(
        world, "_settings", dataclasses.replace(world._settings, fusion_threshold=40)
    )
    shapes = [(3,), (5,), (), (20,), (1,), (2, 2), (0,), (7,)]
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    before = collectives()
    steps(
        optimizer,
        lambda s: [tf.ones(shape) * (RANK + 1) * i for i, shape in enumerate(shapes)],
        variables,
        count=1,
        graph=True,
    )
    assert collectives() - before == 4
    for i, variable in enumerate(variables):
        np.testing.assert_array_equal(variable, np.full(shapes[i], -MEAN * i))


# Sparse gradients.


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], OPTIMIZERS["Adam"], OPTIMIZERS["clipnorm"]])
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_sparse_gradients_equal_the_joined_batch(make, graph, compression):
    mine, reference = (
        keras.Variable(np.ones((8, 2), "float32")),
        keras.Variable(np.ones((8, 2), "float32")),
    )
    optimizer = hvd.DistributedOptimizer(make(), compression=compression)
    steps(optimizer, lambda s: [embedding_gradient(RANK)], [mine], graph=graph)
    steps(make(), lambda s: [joined_embedding_gradient()], [reference], graph=graph)
    assert_same_on_all_ranks([mine])
    np.testing.assert_allclose(mine, reference, rtol=1e-5)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("rows", [3, 1000], ids=["dense", "sparse"])
def test_slices_are_merged_for_sgd(rows, graph):
    """Three slices of two indices on each rank: two travel, or the dense tensor."""
    variable = keras.Variable(np.zeros((rows, 64), "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))

    def gradient(step):
        values = tf.ones([3, 64]) * tf.constant([[1.0], [2.0], [4.0]]) * (RANK + 1.0)
        return [tf.IndexedSlices(values, tf.constant([2, 0, 2]), tf.constant([rows, 64]))]

    steps(optimizer, gradient, [variable], count=1, graph=graph)  # traces, and makes slots
    before = _library.core.stats()["bytes"]
    steps(optimizer, gradient, [variable], count=1, graph=graph)
    sent = _library.core.stats()["bytes"] - before
    expected = np.zeros((rows, 64))
    expected[[0, 2]] = [[-2 * 2.0 * MEAN], [-2 * 5.0 * MEAN]]
    np.testing.assert_array_equal(variable, expected)
    travelling = 3 if rows == 3 else 2
    assert sent == 4 * 64 * travelling + 4 * (2 + 1)


def test_slices_are_merged_on_request_and_give_the_dense_result():
    mine, reference = (keras.Variable(np.ones((8, 2), "float32")) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), merge_slices=True)
    steps(optimizer, lambda s: [embedding_gradient(RANK)], [mine])
    steps(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), sparse_as_dense=True),
        lambda s: [embedding_gradient(RANK)],
        [reference],
    )
    assert_same_on_all_ranks([mine])
    np.testing.assert_allclose(mine, reference, rtol=1e-5)


def test_sparse_as_dense():
    mine, reference = (
        keras.Variable(np.ones((8, 2), "float32")),
        keras.Variable(np.ones((8, 2), "float32")),
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), sparse_as_dense=True)
    steps(optimizer, lambda s: [embedding_gradient(RANK)], [mine])
    steps(
        keras.optimizers.Adam(0.1),
        lambda s: [tf.convert_to_tensor(joined_embedding_gradient())],
        [reference],
    )
    np.testing.assert_allclose(mine, reference, rtol=1e-5)
