"""What the SPMD tests of hvd.Strategy share."""

import contextlib

import keras
import numpy as np
from keras_cases import everywhere

import hvd_keras as hvd

hvd.init()
FEATURES = 6


def joined_data(rows=53, seed=0):
    """The same x [rows, FEATURES] and y [rows, 1] on every rank."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * rng.normal(size=(rows, 1))
    return x, y.astype("float32")


def mlp(*extra):
    """A function that makes a model, with the layers that the functions ``extra`` make."""

    def build():
        keras.utils.set_random_seed(5)
        return keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(16, "tanh", kernel_regularizer=keras.regularizers.L2(0.1)),
                *(make() for make in extra),
                keras.layers.Dense(1),
            ]
        )

    return build


def scope(strategy):
    return strategy.scope() if strategy is not None else contextlib.nullcontext()


def fit(strategy, build, optimizer, data=None, epochs=2, fit_options=None, **compile_options):
    """Trains a model; without a strategy, as one process does on the same data.

    Returns the model and its history.
    """
    x, y = joined_data() if data is None else data
    options = {"loss": "mse", "metrics": ["mae"], **compile_options}
    with scope(strategy):
        model = build()
        model.compile(optimizer(), **options)
    keras.utils.set_random_seed(9)  # the same order of the data everywhere
    fit_options = {"batch_size": 16, "verbose": 0, **(fit_options or {})}
    history = model.fit(x, y, epochs=epochs, **fit_options).history
    return model, history


def assert_same_bits(values):
    """The values are bit for bit the same on all ranks."""
    mine = [np.asarray(value).tobytes() for value in values]
    for rank, theirs in enumerate(everywhere(mine)):
        differing = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
        assert not differing, f"values {differing} differ from rank {rank}'s"


def assert_trained_like(model, reference, atol=1e-6):
    """The weights are those of the reference, which has moved, and the same on all ranks."""
    assert_same_bits(model.weights)
    assert_same_bits(model.optimizer.variables)
    for ours, theirs in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def assert_same_history(history, reference, rtol=1e-5):
    histories = everywhere(history)
    assert all(theirs == histories[0] for theirs in histories)
    assert history.keys() == reference.keys()
    for name, values in history.items():
        np.testing.assert_allclose(values, reference[name], rtol=rtol, atol=1e-6, err_msg=name)
