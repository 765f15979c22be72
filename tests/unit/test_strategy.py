"""hvd.Strategy in a process of its own: TensorFlow's default strategy."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
import hvd_keras.tensorflow

pytestmark = pytest.mark.skipif("__import__('os').environ.get('HVD_SIZE', '1') != '1'")


def trained(scope):
    keras.utils.set_random_seed(1)
    with scope:
        normalization, dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
        model = keras.Sequential([keras.Input((2,)), normalization, dropout, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1, clipnorm=0.5), "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(10, 2)).astype("float32")
    history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0).history
    return [*model.get_weights(), model.predict(x, verbose=0), *history.values()]


def test_it_trains_as_the_default_strategy_does():
    strategy = hvd.Strategy()
    assert hvd.is_initialized() and strategy.num_replicas_in_sync == 1
    expected = trained(tf.distribute.get_strategy().scope())
    for ours, theirs in zip(trained(strategy.scope()), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_collectives_of_one():
    strategy = hvd.tensorflow.Strategy()
    assert strategy.reduce("SUM", tf.constant(2.0), axis=None) == 2.0
    assert strategy.gather(tf.constant([2.0]), axis=0) == [2.0]
    dataset = tf.data.Dataset.range(4).batch(2)
    assert strategy.experimental_distribute_dataset(dataset) is dataset
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    strategy.run(lambda: variable.assign_add(tf.constant(2.0)))
    assert float(variable) == 3.0


def test_eager_execution_is_needed():
    script = (
        "import tensorflow as tf; tf.compat.v1.disable_eager_execution(); "
        "import hvd_keras as hvd; hvd.Strategy()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert "RuntimeError: hvd.Strategy needs eager execution" in done.stderr
