"""A bucket travels while the backward pass computes the gradients of the next.

Rank 0 trains. The other rank takes part in the buckets in the opposite order, and one after
another: in the last one first, whose gradients the backward pass computes last. So no bucket can
arrive before all of the backward pass is done, and a rank that waited for one before it went on
would wait for ever; after a second, that is an error on both.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

hvd.init()
RANK = hvd.rank()

pytestmark = [pytest.mark.ranks(2), pytest.mark.skipif(hvd.size() != 2, reason="for two ranks")]

LAYERS, STEPS = 6, 3
BUCKETS = LAYERS // 2


# The names of the buckets, without their numbers.
NAMES = {
    "optimizer": "step/gradients",
    "tape": "step/tape_gradients",
    "train_on_batch": "one_step_on_data/gradients",
}


def make_model(width):
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(width, activation="tanh") for _ in range(LAYERS)]
    return keras.Sequential([keras.Input((width,)), *dense])


def partner(model, name):
    """What the other rank does: it sends zeros, the last bucket first."""
    variables = list(reversed(model.trainable_variables))
    length = len(variables) // BUCKETS
    for _ in range(STEPS):
        for number in reversed(range(BUCKETS)):
            bucket = variables[number * length : (number + 1) * length]
            hvd.grouped_allreduce(
                [tf.zeros(v.shape) for v in bucket],
                op=hvd.Average,
                name=f"{name}.{number}",
                ignore_name_scope=True,
            )


def weights_alone(model, x):
    """After the same steps, with half of the gradients."""
    model.compile(keras.optimizers.SGD(0.05), "mse")
    for _ in range(STEPS):
        model.train_on_batch(x, x)
    return model.get_weights()


@pytest.mark.parametrize("width", [3, 200])  # XLA runs small computations in another way
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
@pytest.mark.parametrize("way", NAMES)
def test_all_buckets_travel_before_the_first_arrives(way, jit, width):
    model = make_model(width)
    if RANK == 1:
        partner(model, NAMES[way])
        return
    x = np.random.default_rng(0).normal(size=(32, width)).astype("float32")
    optimizer = keras.optimizers.SGD(0.1)
    if way != "tape":
        optimizer = hvd.DistributedOptimizer(optimizer, num_groups=BUCKETS)
    if way == "train_on_batch":
        model.compile(optimizer, "mse", jit_compile=jit)
        for _ in range(STEPS):
            model.train_on_batch(x, x)
    else:

        @tf.function(jit_compile=jit)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - x) ** 2)
            if way == "tape":
                tape = hvd.DistributedGradientTape(tape, num_groups=BUCKETS)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        optimizer.build(model.trainable_variables)
        for _ in range(STEPS):
            step(x)
    for ours, alone in zip(model.get_weights(), weights_alone(make_model(width), x), strict=True):
        np.testing.assert_allclose(ours, alone, atol=1e-5)
