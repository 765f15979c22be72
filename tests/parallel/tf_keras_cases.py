"""What the tests of Keras 2 share: models and data. Without tf_keras these tests are skipped."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

tf_keras = pytest.importorskip("tf_keras")
legacy = tf_keras.optimizers.legacy

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
BATCH, STEPS, FEATURES = 4, 12, 5

OPTIMIZERS = {
    "SGD": lambda: tf_keras.optimizers.SGD(0.05),
    "momentum": lambda: tf_keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: tf_keras.optimizers.Adam(0.01),
    "legacy_SGD": lambda: legacy.SGD(0.05, momentum=0.9),
    "legacy_Adam": lambda: legacy.Adam(0.01),
}
EACH_OPTIMIZER = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


@functools.cache
def joined_batches():
    """x [STEPS, SIZE * BATCH, FEATURES] and y [STEPS, SIZE * BATCH, 1], the same on all ranks."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, SIZE * BATCH, FEATURES)).astype("float32")
    y = np.sin(x.sum(axis=2, keepdims=True)) + 0.1 * rng.normal(size=(*x.shape[:2], 1))
    return x, y.astype("float32")


def dataset(mine, joined=1):
    """This rank's part of every joined batch, or all of it; `joined` of them at a time."""
    x, y = joined_batches()
    rows = slice(RANK, None, SIZE) if mine else slice(None)
    x, y = x[:, rows], y[:, rows]
    x, y = x.reshape(-1, joined * x.shape[1], FEATURES), y.reshape(-1, joined * y.shape[1], 1)
    return tf.data.Dataset.from_tensor_slices((x, y))


def layers(*extra):
    return [
        tf_keras.layers.Dense(16, activation="tanh"),
        *extra,
        tf_keras.layers.Dense(8, activation="tanh"),
        tf_keras.layers.Dense(1),
    ]


def sequential(*extra, seed=0, build=True):
    tf_keras.utils.set_random_seed(seed)
    first = [tf_keras.Input((FEATURES,))] if build else []
    return tf_keras.Sequential([*first, *layers(*extra)])


def fit(model, optimizer, data, epochs=2, callbacks=None, **options):
    model.compile(optimizer, "mse", **options)
    model.fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
    return model


@functools.cache
def one_process(make, epochs=2, joined=1):
    """The model that one process trains on the joined batches; not to be changed."""
    return fit(sequential(), make(), dataset(False, joined), epochs)


def state(optimizer):
    """The optimizer's variables."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def assert_identical_on_all_ranks(variables):
    mine = [np.asarray(v).tobytes() for v in variables]
    assert all(other == mine for other in hvd.allgather_object(mine))


def assert_equal(model, reference, start=None):
    assert_identical_on_all_ranks(model.trainable_variables)
    assert_identical_on_all_ranks(state(model.optimizer))
    start = start or sequential()
    for ours, theirs, initial in zip(
        model.get_weights(), reference.get_weights(), start.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        assert np.abs(theirs - initial).max() > 1e-3  # it did train
