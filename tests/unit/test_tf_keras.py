"""Keras 2 in one process, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

tf_keras = pytest.importorskip("tf_keras")


@pytest.fixture(autouse=True)
def initialized():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    "optimizer", [tf_keras.optimizers.Adam, tf_keras.optimizers.legacy.Adam], ids=["new", "legacy"]
)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_accumulation_equals_one_step_on_the_joined_batch(optimizer, policy):
    def model():
        tf_keras.utils.set_random_seed(1)
        tf_keras.mixed_precision.set_global_policy(policy)
        try:
            layers = [tf_keras.layers.Dense(4, activation="tanh"), tf_keras.layers.Dense(1)]
            return tf_keras.Sequential([tf_keras.Input((3,)), *layers])
        finally:
            tf_keras.mixed_precision.set_global_policy("float32")

    def scaled(optimizer):
        if policy == "float32":
            return optimizer
        # Small enough that no step overflows.
        return tf_keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=16.0)

    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    accumulated, joined = model(), model()
    wrapped = hvd.DistributedOptimizer(
        optimizer(0.01), backward_passes_per_step=4, average_aggregated_gradients=True
    )
    accumulated.compile(scaled(wrapped), "mse")
    joined.compile(scaled(optimizer(0.01)), "mse")
    accumulated.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    joined.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    tolerance = 1e-6 if policy == "float32" else 2e-3
    for ours, theirs in zip(accumulated.get_weights(), joined.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
    assert int(wrapped.iterations.numpy()) == 4


def test_dense_and_sparse_gradients_of_one_variable_add_up():
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    table = tf.Variable(tf.zeros([3, 1]))
    sparse = tf.IndexedSlices(tf.constant([[1.0], [1.0]]), tf.constant([2, 2]), [3, 1])
    dense = tf.constant([[1.0], [0.0], [3.0]])
    for first, second in ((sparse, dense), (dense, sparse)):
        before = table.numpy()
        optimizer.apply_gradients([(first, table)])
        np.testing.assert_array_equal(table.numpy(), before)
        optimizer.apply_gradients([(second, table)])
        np.testing.assert_array_equal(table.numpy() - before, [[-1.0], [0.0], [-5.0]])


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_accumulation_in_a_graph_of_tensorflow_1_is_refused():
    output = run(
        """
import tensorflow as tf, tf_keras
import hvd_keras as hvd
tf.compat.v1.disable_v2_behavior()
hvd.init()
hvd.DistributedOptimizer(tf_keras.optimizers.legacy.SGD(0.1))
try:
    hvd.DistributedOptimizer(tf_keras.optimizers.legacy.SGD(0.1), backward_passes_per_step=2)
except ValueError as error:
    print(error)
"""
    )
    assert "does not work in tf.compat.v1 graphs" in output


def test_several_replicas_in_a_rank_are_refused():
    output = run(
        """
import tensorflow as tf, tf_keras
import hvd_keras as hvd
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
hvd.init()
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1)), "mse")
try:
    model.fit(tf.ones((4, 2)), tf.ones((4, 1)), verbose=0)
except ValueError as error:
    print(error)
"""
    )
    assert "a tf.distribute strategy of 2 replicas inside of a rank" in output
