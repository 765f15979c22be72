"""DistributedOptimizer where steps are special: accumulation, loss scaling, float8, parts."""

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


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], OPTIMIZERS["Adam"]])
def test_accumulation_reduces_once_per_update(make, graph):
    base = make().get_config()

    def accumulating(k):
        return type(make()).from_config({**base, "gradient_accumulation_steps": k})

    mine, reference = new_variables(), new_variables()
    optimizer = hvd.DistributedOptimizer(accumulating(3))
    before = collectives()
    steps(optimizer, lambda s: model_gradients(RANK, s), mine, count=6, graph=graph)
    assert collectives() - before == 2
    means = [mean_gradients(s) for s in range(6)]
    big = [[tf.add_n(list(gs)) / 3 for gs in zip(*means[i : i + 3], strict=True)] for i in (0, 3)]
    steps(make(), lambda s: big[s], reference, count=2, graph=graph)
    assert_same_on_all_ranks(mine)
    for ours, theirs in zip(mine, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_accumulation_of_sparse_gradients(graph):
    mine, reference = (
        keras.Variable(np.ones((8, 2), "float32")),
        keras.Variable(np.ones((8, 2), "float32")),
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1, gradient_accumulation_steps=2))
    steps(optimizer, lambda s: [embedding_gradient(RANK)], [mine], count=4, graph=graph)
    dense = tf.convert_to_tensor(joined_embedding_gradient())
    steps(keras.optimizers.Adam(0.1), lambda s: [dense], [reference], count=2, graph=graph)
    assert_same_on_all_ranks([mine])
    np.testing.assert_allclose(mine, reference, rtol=1e-5)


@pytest.mark.parametrize("graph", [False, True])
def test_a_keras_that_accumulates_in_another_way_is_noticed(graph):
    class OfTheFuture(keras.optimizers.SGD):
        def _backend_apply_gradients(self, grads, trainable_variables):
            for grad, variable in zip(grads, trainable_variables, strict=True):
                self.update_step(grad, variable, self.learning_rate)

    optimizer = hvd.DistributedOptimizer(OfTheFuture(1.0, gradient_accumulation_steps=1 + 1))
    with pytest.raises(RuntimeError, match="were not reduced"):
        steps(optimizer, lambda s: [tf.ones([1])], [keras.Variable([0.0])], count=2, graph=graph)


def test_accumulation_clips_the_reduced_gradient():
    v = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0, clipvalue=0.5, gradient_accumulation_steps=2)
    )
    # +3 on rank 0, -1 elsewhere: clipped before the reduction it would be another value.
    for _ in range(2):
        optimizer.apply([tf.constant([3.0 if RANK == 0 else -1.0])], [v])
    mean = (3.0 - (SIZE - 1)) / SIZE
    np.testing.assert_allclose(float(v[0]), -np.clip(mean, -0.5, 0.5), rtol=1e-6)


NESTINGS = {
    "outside": lambda inner: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(inner)),
    "inside": lambda inner: keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(inner)),
}
NESTED = pytest.mark.parametrize("nest", NESTINGS.values(), ids=NESTINGS.keys())


@NESTED
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("overflowing", ["first", "last"])
def test_overflow_on_one_rank_skips_the_step_on_all(nest, graph, overflowing):
    overflowing = 0 if overflowing == "first" else SIZE - 1
    v = keras.Variable([1.0, 1.0])
    optimizer = nest(keras.optimizers.SGD(1.0))
    optimizer.build([v])
    scale = 2.0**15

    def apply(grad):
        optimizer.apply_gradients([(grad, v)])

    run = tf.function(apply) if graph else apply
    fine = tf.constant([scale, 0.0]) * (RANK + 1)
    run(fine)
    np.testing.assert_allclose(v, [1.0 - MEAN, 1.0])
    for bad in (np.inf, np.nan):
        before = v.numpy()
        run(tf.constant([bad, 0.0]) if overflowing == RANK else fine)
        np.testing.assert_array_equal(v, before)
        scale /= 2
        assert float(optimizer.dynamic_scale.numpy()) == scale
    run(fine)
    np.testing.assert_allclose(v, [1.0 - 5 * MEAN, 1.0])  # unscaled with a quarter of the scale
    assert int(optimizer.inner_optimizer.iterations.numpy()) == 2
    assert_same_on_all_ranks([v, optimizer.dynamic_scale, optimizer.step_counter])


@NESTED
@pytest.mark.parametrize("graph", [False, True])
def test_overflow_while_accumulating(nest, graph):
    v = keras.Variable([1.0])
    optimizer = nest(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    optimizer.build([v])

    def apply(grad):
        optimizer.apply_gradients([(grad, v)])

    run = tf.function(apply) if graph else apply
    scale = float(optimizer.dynamic_scale.numpy())
    run(tf.constant([scale * (RANK + 1)]))
    run(tf.constant([np.inf if RANK == SIZE - 1 else scale]))  # skipped everywhere
    assert float(v[0]) == 1.0
    assert float(optimizer.dynamic_scale.numpy()) == scale / 2
    run(tf.constant([scale / 2 * (RANK + 1)]))
    np.testing.assert_allclose(v, [1.0 - MEAN], rtol=1e-6)
    assert_same_on_all_ranks([v, optimizer.dynamic_scale])


@NESTED
def test_overflow_in_the_compressed_sum_skips_the_step(nest):
    del nest
    v = keras.Variable([1.0])
    inner = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), op=hvd.Sum, compression=hvd.Compression.fp16
    )
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
    optimizer.apply([tf.constant([60000.0])], [v])  # finite on each rank, not their sum
    if SIZE > 1:
        assert float(v[0]) == 1.0
        assert float(optimizer.dynamic_scale.numpy()) == 0.5


def test_loss_scale_optimizer_of_others_is_left_alone():
    v = keras.Variable([1.0])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0)
    before = collectives()
    optimizer.apply([tf.constant([np.inf if RANK == 0 else 1.0])], [v])
    assert float(v[0]) == (1.0 if RANK == 0 else 0.0)
    assert collectives() == before


@pytest.mark.parametrize("accumulate", [None, 2])
@pytest.mark.parametrize("scaled", [False, True])
def test_overwrite_with_gradient_takes_the_maximum(accumulate, scaled):
    # New scales of float8 training, not gradients: an average would be smaller than one of them.
    scale, weight = keras.Variable([0.0, 0.0]), keras.Variable([0.0])
    scale.overwrite_with_gradient = True
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulate), op=hvd.Sum
    )
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    for _ in range(accumulate or 1):
        optimizer.apply(
            [tf.constant([RANK + 1.0, SIZE - RANK]), tf.constant([1.0])], [scale, weight]
        )
    np.testing.assert_array_equal(scale, [SIZE, SIZE])
    np.testing.assert_allclose(weight, [-SIZE])


def test_float8_layer_trains_alike_on_all_ranks():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.quantize("float8")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = np.random.default_rng(RANK).normal(size=(32, 8)) * (RANK + 1)
    model.fit(x, np.ones((32, 4)), batch_size=8, epochs=2, verbose=0)
    assert_same_on_all_ranks(model.weights)


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="an older Keras")
@pytest.mark.parametrize("where", ["whole", "parts"])
def test_multi_optimizer(where):
    a, b = keras.Variable([0.0], name="a"), keras.Variable([0.0], name="b")
    parts = [keras.optimizers.SGD(1.0), keras.optimizers.SGD(2.0)]
    if where == "parts":
        parts = [hvd.DistributedOptimizer(part) for part in parts]
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(parts[0], {"b": parts[1]})
    )
    if where == "whole":
        optimizer = hvd.DistributedOptimizer(optimizer)
    for _ in range(2):
        optimizer.apply([tf.constant([RANK + 1.0]), tf.constant([RANK + 1.0])], [a, b])
    np.testing.assert_allclose([float(a[0]), float(b[0])], [-2 * MEAN, -4 * MEAN], rtol=1e-6)
