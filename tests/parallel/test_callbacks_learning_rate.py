"""The learning rate callbacks: rates in closed form, the same on all ranks."""

import keras
import numpy as np
import pytest
from keras_cases import assert_same_on_all_ranks, joined_data, mlp

import hvd_keras as hvd

STEPS = 4


class Rates(keras.callbacks.Callback):
    """Records the rate with which each step is made."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


def train(callbacks, epochs, initial_epoch=0, optimizer=None, model=None, **compile_options):
    """Returns the rates of all steps, by epoch, and the logs."""
    x, y = hvd.shard(joined_data(STEPS, 2))
    if model is None:
        model = mlp()
        model.compile(optimizer or keras.optimizers.SGD(0.25), "mse", **compile_options)
    rates = Rates()
    history = model.fit(
        x,
        y,
        batch_size=2,
        epochs=epochs,
        initial_epoch=initial_epoch,
        verbose=0,
        shuffle=False,
        callbacks=[*callbacks, rates],
    )
    return np.reshape(rates.rates, (epochs - initial_epoch, -1)), history.history


def schedule(*args, **kwargs):
    return hvd.callbacks.LearningRateScheduleCallback(*args, **kwargs)


def warmup(*args, **kwargs):
    return hvd.callbacks.LearningRateWarmupCallback(*args, **kwargs)


def expected_warmup(rate, warmup_epochs, epochs):
    n = hvd.size()
    progress = (np.arange(epochs * STEPS) + 1) / STEPS / warmup_epochs
    return (rate / n * (1 + (n - 1) * np.minimum(progress, 1))).reshape(epochs, STEPS)


def test_warmup():
    rates, logs = train([warmup(0.5, warmup_epochs=3)], epochs=5)
    np.testing.assert_allclose(rates, expected_warmup(0.5, 3, 5), rtol=1e-6)
    assert rates[2, -1] == rates[3, 0] == 0.5
    assert logs["lr"] == logs["learning_rate"] == rates[:, -1].tolist()
    assert_same_on_all_ranks([rates])


def test_warmup_reaches_its_end_with_several_steps_per_execution():
    rates, logs = train([warmup(0.3, warmup_epochs=2)], epochs=3, steps_per_execution=3)
    # Set before the steps 0 to 2 and the step 3 of each epoch.
    expected = expected_warmup(0.3, 2, 3)[:, [0, 3]]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert logs["lr"][-1] == np.float32(0.3)


def test_warmup_says_when_it_ends(capfd):
    train([warmup(0.5, warmup_epochs=2, verbose=1)], epochs=3)
    text = capfd.readouterr().out
    assert text.count("Epoch 2: learning rate warm-up finished at 0.5.") == (hvd.rank() == 0)


@pytest.mark.parametrize("resumed_at", [1, 2, 3, 5])
def test_resumed_run_has_the_rates_of_an_uninterrupted_one(resumed_at):
    def callbacks():
        return [
            schedule(0.5, lambda e: 3 - e, start_epoch=4, end_epoch=5),
            warmup(0.5, 2),
            schedule(0.5, 0.5, start_epoch=2, end_epoch=4),
        ]

    whole, _ = train(callbacks(), 6)
    rest, _ = train(callbacks(), 6, initial_epoch=resumed_at)
    np.testing.assert_array_equal(rest, whole[resumed_at:])


def test_restored_rate_is_left_alone_after_the_last_epoch_of_a_schedule():
    model = mlp()
    model.compile(keras.optimizers.SGD(0.125), "mse")
    model.optimizer.iterations.assign(1)
    rates, _ = train([warmup(0.5, 2)], 4, initial_epoch=3, model=model)
    assert (rates == 0.125).all()


def test_constant_multiplier_counts_from_its_start():
    rates, _ = train([schedule(0.5, 0.5, start_epoch=1, end_epoch=4)], 5)
    np.testing.assert_array_equal(rates[:, 0], [0.25, 0.5, 0.25, 0.125, 0.125])
    assert (rates == rates[:, :1]).all()


def test_smooth_schedule():
    rates, _ = train([schedule(0.5, lambda epoch: 1 / (1 + epoch), staircase=False)], 2)
    epoch = np.arange(2 * STEPS) / STEPS
    np.testing.assert_allclose(rates.ravel(), 0.5 / (1 + epoch), rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction(nesterov):
    """Against the equations: the buffer holds the old rate, and is scaled to the new one."""
    x, y = joined_data(STEPS, 2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((3, 1), "float32")])
    sgd = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
    model.compile(hvd.DistributedOptimizer(sgd), "mse")
    factors = [1.0, 0.5, 2.0]
    train([schedule(0.02, lambda epoch: factors[epoch])], 3, model=model)

    w, velocity, old = np.ones((3, 1)), np.zeros((3, 1)), 0.02
    for epoch in range(3):
        rate = 0.02 * factors[epoch]
        velocity, old = velocity * rate / old, rate
        for step in range(STEPS):
            rows = slice(step * 2 * hvd.size(), (step + 1) * 2 * hvd.size())
            gradient = 2 * x[rows].T @ (x[rows] @ w - y[rows]) / (2 * hvd.size())
            velocity = 0.9 * velocity - rate * gradient
            w = w + (0.9 * velocity - rate * gradient if nesterov else velocity)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-4)
    assert_same_on_all_ranks(model.get_weights())


def test_momentum_correction_can_be_turned_off_and_leaves_adam_alone():
    for optimizer, correct in [
        (keras.optimizers.RMSprop(0.1, momentum=0.5), True),
        (keras.optimizers.RMSprop(0.1, momentum=0.5), False),
        (keras.optimizers.Adam(0.1), True),
    ]:
        model = mlp()
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        for variable in optimizer.variables[2:]:
            variable.assign(keras.ops.ones(variable.shape))
        callback = schedule(0.1, 3.0, start_epoch=-1, momentum_correction=correct)
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        np.testing.assert_allclose(float(optimizer.learning_rate), 0.3, rtol=1e-6)
        changed = {
            v.path.rsplit("_", 1)[-1] for v in optimizer.variables[2:] if not (v.numpy() == 1).all()
        }
        has_rate = correct and isinstance(optimizer, keras.optimizers.RMSprop)
        assert changed == ({"momentum"} if has_rate else set())


def test_optimizer_inside_a_loss_scale_optimizer():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25))
    rates, logs = train([warmup(0.5, 2)], 3, optimizer=scaled)
    assert logs["lr"][-1] == float(scaled.inner_optimizer.learning_rate) == 0.5


@pytest.mark.parametrize("rate", ["schedule", "callable"])
def test_rate_that_cannot_be_set(rate):
    given = {
        "schedule": keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5),
        "callable": lambda: 0.1,
    }[rate]
    with pytest.raises(ValueError, match="learning_rate=<float>"):
        train([warmup(0.1)], 1, optimizer=keras.optimizers.SGD(given))


def test_steps_per_epoch_that_are_not_known():
    import tensorflow as tf

    x, y = hvd.shard(joined_data(STEPS, 2))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True).batch(2)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match="pass steps_per_epoch"):
        model.fit(dataset, verbose=0, callbacks=[warmup(0.5)])
    model.fit(dataset, verbose=0, callbacks=[warmup(0.5, 1, steps_per_epoch=STEPS)])
    assert float(model.optimizer.learning_rate) == 0.5


@pytest.mark.skipif(hvd.size() == 1, reason="needs two ranks")
def test_ranks_with_different_settings():
    with pytest.raises(ValueError, match=r"\(0\.5, 0, 5, False\) on rank 0"):
        train([warmup(0.5 + min(hvd.rank(), 1))], 1)
