"""Options of DistributedOptimizer and the tape that Horovod's users know, on three ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import _library

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = np.mean(range(1, SIZE + 1))  # of rank + 1


def applied(optimizer, steps=1, variables=None, scale=1.0):
    """What `steps` updates with gradients of rank + 1 do to variables that start at 0."""
    variables = variables or [keras.Variable(tf.zeros([2]), name=f"v{i}") for i in range(4)]

    @tf.function
    def step():
        optimizer.apply([tf.fill(v.shape, scale * (RANK + 1.0)) for v in variables], variables)

    optimizer.build(variables)
    for _ in range(steps):
        step()
    return [float(v.numpy()[0]) for v in variables]


@pytest.mark.parametrize("average", [False, True])
def test_backward_passes_per_step(average):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        backward_passes_per_step=3,
        average_aggregated_gradients=average,
    )
    expected = -MEAN * 2 * (1 if average else 3)
    np.testing.assert_allclose(applied(optimizer, steps=7), expected, rtol=1e-6)


def test_backward_passes_of_an_optimizer_that_cannot():
    built = keras.optimizers.SGD(1.0)
    built.build([keras.Variable([1.0])])
    with pytest.raises(ValueError, match="has been built already"):
        hvd.DistributedOptimizer(built, backward_passes_per_step=2)
    own = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="leave out one of them"):
        hvd.DistributedOptimizer(own, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="at least 1"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=0)


@pytest.mark.parametrize("num_groups", [1, 2, 3, 4, 9])
def test_num_groups(num_groups):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), num_groups=num_groups)
    before = _library.core.stats()["collectives"]
    np.testing.assert_allclose(applied(optimizer), -MEAN)
    buckets = _library.core.stats()["collectives"] - before
    assert buckets == {1: 1, 2: 2, 3: 2, 4: 4, 9: 4}[num_groups]


def test_groups_of_variables():
    variables = [keras.Variable(tf.zeros([2]), name=f"v{i}") for i in range(5)]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), groups=[[variables[0], variables[3]], [variables[4]]]
    )
    np.testing.assert_allclose(applied(optimizer, variables=variables), -MEAN)
    with pytest.raises(ValueError, match="expected one of them"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), num_groups=2, groups=[variables])


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_op(op):
    expected = MEAN * (SIZE if op is hvd.Sum else 1)
    np.testing.assert_allclose(
        applied(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op)), -expected
    )


def test_adasum_of_equal_gradients_is_their_mean():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Adasum)
    np.testing.assert_allclose(applied(optimizer, scale=1 / (RANK + 1.0)), -1, rtol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
def test_local_variables_stay_on_their_rank(scaled):
    variables = [keras.Variable(tf.zeros([2]), name=f"v{i}") for i in range(3)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=scaled)
    optimizer.register_local_var(variables[1])
    local = -(RANK + 1) / (SIZE if scaled else 1)
    np.testing.assert_allclose(
        applied(optimizer, variables=variables), [-MEAN, local, -MEAN], rtol=1e-6
    )


def small_model(local):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Dense(3), local, keras.layers.Dense(1)])


def test_partial_optimizer_with_layers_that_are_built_later():
    local = keras.layers.Dense(3, name="local")
    model = small_model(local)
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=local)
    model.compile(optimizer, "mse")
    x = np.random.default_rng(RANK).normal(size=(8, 4)).astype("float32")
    model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=0)
    for layer in model.layers:
        for weight in layer.trainable_weights:
            copies = hvd.allgather_object(weight.numpy())
            same = [np.array_equal(copies[0], copy) for copy in copies[1:]]
            assert all(same) if layer is not local else not any(same), weight.path


def test_partial_tape():
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    shared = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(shared(local(tf.fill([1, 1], RANK + 1.0))))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[local])
    gradients = tape.gradient(loss, [local.kernel, shared.kernel])
    np.testing.assert_allclose(gradients[0], [[(RANK + 1) / SIZE]], rtol=1e-6)
    np.testing.assert_allclose(gradients[1], [[MEAN]])
    with pytest.raises(TypeError, match="expected Keras layers"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=["dense"])


def test_local_source_of_a_tape():
    x, y = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = (x + y) * (RANK + 1.0)
    tape = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
    tape.register_local_source(y)
    gradients = tape.gradient(loss, [x, y])
    assert float(gradients[0]) == MEAN and float(gradients[1]) == RANK + 1


def test_process_set_of_an_optimizer_and_a_tape():
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=pair)
        assert optimizer.process_set is pair
        np.testing.assert_allclose(applied(optimizer), -2)
        x = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = x * (RANK + 1.0)
        tape = hvd.DistributedGradientTape(tape, process_set=pair)
        assert float(tape.gradient(loss, x)) == 2
    else:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=pair)
        with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
            applied(optimizer)
    hvd.remove_process_set(pair)


@pytest.mark.parametrize("scale", [True, False])
def test_what_an_optimizer_says_of_local_gradients(scale):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=scale)
    assert optimizer.scale_local_gradients is scale
    outer = keras.optimizers.LossScaleOptimizer(optimizer)
    assert outer.inner_optimizer.scale_local_gradients is scale
