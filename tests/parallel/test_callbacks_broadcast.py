"""BroadcastGlobalVariablesCallback on several ranks, whose variables differ to begin with."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import Probe, assert_same_on_all_ranks, everywhere, fill_by_rank, joined_data, mlp

import hvd_keras as hvd

LAST = hvd.size() - 1


def data(batches=3):
    return hvd.shard(joined_data(batches, 4))


def broadcast(root_rank=LAST, **kwargs):
    return hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank, **kwargs)


def expected_for_root(weights):
    return [np.full(w.shape, LAST + 1 + i / 8, w.dtype) for i, w in enumerate(weights)]


def assert_equal(weights, expected):
    for a, b in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", ["first", "last"])
def test_built_model_has_the_roots_variables_before_its_first_step(order):
    model = mlp()
    model.compile(keras.optimizers.Adam(0.5 + hvd.rank()), "mse")
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables:
        variable.assign(keras.ops.full(variable.shape, 1 + hvd.rank(), variable.dtype))
    fill_by_rank(model)
    probe = Probe("on_train_batch_begin")
    callbacks = [broadcast(), probe]
    model.fit(
        *data(),
        batch_size=12,
        verbose=0,
        shuffle=False,
        callbacks=callbacks if order == "first" else callbacks[::-1],
    )
    if order == "first":
        first = probe.seen["on_train_batch_begin"][0]
        assert_equal(first, expected_for_root(first))
    assert int(model.optimizer.iterations) == LAST + 1 + 1
    assert float(model.optimizer.learning_rate) == LAST + 1
    if hvd.size() > 1:
        assert len({w[0].tobytes() for w in everywhere(model.get_weights())}) > 1  # plain Adam


def linear_model(kind):
    """y = x @ w, w initialized by rank, built on its first batch; and its compile options."""
    keras.utils.set_random_seed(100 + hvd.rank())
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="normal")
    if kind == "subclass":

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = dense

            def call(self, x):
                return self.dense(x)

        return Model(), {}
    if kind.startswith("train_step"):

        class Model(keras.Model):  # with an optimizer of its own
            def __init__(self):
                super().__init__()
                self.dense = dense
                self.tracker = keras.metrics.Mean("loss")
                self.own = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))

            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self.dense(x) - y) ** 2)
                variables = self.dense.trainable_variables
                self.own.apply(tape.gradient(loss, variables), variables)
                self.tracker.update_state(loss)
                return {"loss": self.tracker.result()}

        if kind == "train_step_eager":
            Model.call = lambda self, x: self.dense(x)
        return Model(), {"run_eagerly": kind == "train_step_eager"}
    options = {"graph": {}, "eager": {"run_eagerly": True}, "many": {"steps_per_execution": 4}}
    return keras.Sequential([dense]), options[kind]


@pytest.mark.parametrize(
    "kind", ["graph", "eager", "many", "subclass", "train_step", "train_step_eager"]
)
def test_model_built_on_its_first_batch_starts_from_the_roots_weights(kind):
    model, options = linear_model(kind)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse", **options)
    x, y = joined_data(5, 4)
    model.fit(*hvd.shard((x, y)), batch_size=4, shuffle=False, verbose=0, callbacks=[broadcast()])
    assert_same_on_all_ranks(model.get_weights())

    # What one process does from the root's initial weights, which a fresh model has again.
    initial = everywhere(_initial_weights(kind))[LAST]
    w = initial.astype("float64")
    for batch in range(5):
        rows = slice(batch * 4 * hvd.size(), (batch + 1) * 4 * hvd.size())
        error = x[rows] @ w - y[rows]
        w -= 0.05 * 2 * x[rows].T @ error / len(error)
    np.testing.assert_allclose(model.weights[0].numpy(), w, rtol=1e-5)


def _initial_weights(kind):
    model, _ = linear_model(kind)
    layer = model.layers[0]
    layer.build((None, 3))
    return layer.kernel.numpy()


def test_model_that_only_the_root_has_built_and_trained():
    x, y = joined_data(4, 4)
    model = mlp(build=False)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    if hvd.rank() == LAST:
        model.build((None, 3))
        model.optimizer.build(model.trainable_variables)
        model.optimizer.iterations.assign(7)
    model.fit(*hvd.shard((x, y)), batch_size=4, verbose=0, callbacks=[broadcast()])
    assert int(model.optimizer.iterations) == 7 + 4
    assert_same_on_all_ranks(model.get_weights())
    assert_same_on_all_ranks([v.numpy() for v in model.optimizer.variables])


def test_second_fit_starts_from_the_roots_weights_again():
    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    callback = broadcast()
    model.fit(*data(), verbose=0, callbacks=[callback])
    fill_by_rank(model)
    model.fit(*data(), verbose=0, callbacks=[callback])
    assert_equal(model.get_weights(), expected_for_root(model.get_weights()))


def test_what_another_callback_restores_later_is_broadcast_too():
    class Restore(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            fill_by_rank(self.model)

    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(*data(), verbose=0, callbacks=[broadcast(), Restore()])
    assert_equal(model.get_weights(), expected_for_root(model.get_weights()))


def test_local_variables_stay():
    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    fill_by_rank(model)
    mine = model.get_weights()
    callback = broadcast(local_variables=[model.weights[0]])
    callback.register_local_var(model.weights[1].value)
    model.fit(*data(), verbose=0, callbacks=[callback])
    assert_equal(model.get_weights()[:2], mine[:2])
    assert_equal(model.get_weights()[2:], expected_for_root(mine)[2:])


def seed_states(model):
    weights = {id(v) for v in model.weights}
    return [v.numpy().tolist() for v in model.variables if id(v) not in weights]


def test_dropout_seeds_that_are_the_same_everywhere_are_made_to_differ():
    model = mlp(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    before = seed_states(model)
    model.fit(*data(), batch_size=12, verbose=0, callbacks=[broadcast()])
    after = seed_states(model)
    assert len(before) == 2
    seeds = everywhere([seed for seed, _ in after])
    assert len({tuple(seed) for seed in seeds}) == hvd.size()
    assert seeds[LAST] == [seed for seed, _ in before]
    assert [counter for _, counter in after] == [1, 1]
    # From the same state they come out the same, so that a resumed run has the same masks.
    again = mlp(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))
    again.compile(keras.optimizers.SGD(0.0), "mse")
    again.fit(*data(), batch_size=12, verbose=0, callbacks=[broadcast()])
    assert seed_states(again) == after


def test_dropout_seeds_that_differ_stay():
    model = mlp(keras.layers.Dropout(0.5, seed=50 + hvd.rank()))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(*data(), batch_size=12, verbose=0, callbacks=[broadcast()])
    expected = 50 if hvd.size() == 1 else 50 + hvd.rank()
    assert seed_states(model) == [[expected, 1]]


class Counting(keras.layers.Layer):
    """Counts the calls in training, in steps that differ by rank."""

    def build(self, shape):
        self.count = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, autocast=False
        )

    def call(self, x, training=False):
        if training:
            self.count.assign_add(hvd.rank() + 1)
        return x


@pytest.mark.parametrize("steps", ["known", "several", "unknown"])
def test_moving_statistics_are_those_of_all_ranks(steps):
    batches = 5
    x, y = joined_data(batches, 4)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.BatchNormalization(momentum=0.5),
            Counting(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)),
        "mse",
        steps_per_execution=2 if steps == "several" else 1,
    )
    dataset = hvd.shard(tf.data.Dataset.from_tensor_slices((x, y))).batch(4)
    if steps == "unknown":
        dataset = dataset.filter(lambda x, y: True)
    probe = Probe("on_test_begin", "on_train_end")
    model.fit(
        dataset,
        validation_data=hvd.shard((x, y)),
        verbose=0,
        epochs=2,
        callbacks=[broadcast(), probe],
    )
    assert_same_on_all_ranks(model.get_weights())
    if steps != "unknown":
        for weights in probe.seen["on_test_begin"]:
            assert_same_on_all_ranks(weights)

    by_batch = x.reshape(batches, 4, hvd.size(), 3)
    means = np.tile(by_batch.mean(axis=(1, 2)), (2, 1))
    expected = sum(0.5 ** (2 * batches - i) * mean for i, mean in enumerate(means))
    np.testing.assert_allclose(model.layers[0].moving_mean.numpy(), expected, rtol=1e-5, atol=1e-6)
    variances = np.tile(by_batch.var(axis=1).mean(axis=1), (2, 1))
    expected = sum(0.5 ** (2 * batches - i) * v for i, v in enumerate(variances))
    expected += 0.5 ** (2 * batches)
    np.testing.assert_allclose(model.layers[0].moving_variance.numpy(), expected, rtol=1e-5)
    assert int(model.layers[1].count) > 0


def test_statistics_that_are_local_stay():
    model = mlp(keras.layers.BatchNormalization())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    local = model.layers[1].moving_mean
    model.fit(*data(), batch_size=4, verbose=0, callbacks=[broadcast(local_variables=[local])])
    means = everywhere(local.numpy().tolist())
    assert len({tuple(mean) for mean in means}) == hvd.size()
    assert_same_on_all_ranks([model.layers[1].moving_variance.numpy()])


@pytest.mark.skipif(hvd.size() == 1, reason="needs two ranks")
class TestMismatch:
    """Errors come on every rank, and name what each rank has."""

    def fit(self, model, x, y, **kwargs):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        with pytest.raises(ValueError) as caught:
            model.fit(x, y, verbose=0, callbacks=[broadcast(0)], **kwargs)
        return str(caught.value)

    def test_number_of_variables(self):
        model = mlp(*[keras.layers.Dense(4)] * min(hvd.rank(), 1))
        message = self.fit(model, *data())
        assert "6 variables on rank 0" in message and "8 variables on rank" in message

    def test_shape(self):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(5 + min(hvd.rank(), 1)), keras.layers.Dense(1)]
        )
        message = self.fit(model, *data())
        assert re.search(f"variable number 0 \\('.*kernel' on rank {hvd.rank()}\\) is", message)
        assert "is float32[3, 5] on rank 0; float32[3, 6] on rank" in message

    def test_root_rank(self):
        model = mlp()
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=f"root_rank={hvd.size()} does not exist"):
            model.fit(*data(), verbose=0, callbacks=[broadcast(hvd.size())])


def test_model_that_cannot_be_built_before_its_first_step_is_told():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def train_step(self, data):
            x, y = data
            return {"loss": float(tf.reduce_mean(self.dense(x)))}

    model = Model()
    model.compile(run_eagerly=True)
    with pytest.warns(UserWarning, match="Build the model before fit"):
        model.fit(*data(1), verbose=0, batch_size=4, callbacks=[broadcast()])
    assert_same_on_all_ranks(model.get_weights())
