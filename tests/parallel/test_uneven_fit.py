"""fit where ranks have different numbers of batches: those that have fewer join."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import Probe, assert_same_on_all_ranks, everywhere

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
BATCHES = [3 + 2 * rank for rank in range(SIZE)]
EPOCHS = 2


def weight_model():
    """One weight w with loss w * x, so the gradient of a batch of one is its x."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), 8.0, "float32")])
    return model


def loss_is_output(y_true, y_pred):
    return tf.reduce_mean(y_pred, axis=-1)


def batch_value(rank, batch):
    return float(2 ** (rank + 1) + batch)


def expected_weight():
    """SGD with a rate of 1/64 on the mean of the ranks that still train."""
    weight, rate = 8.0, 1 / 64
    for _ in range(EPOCHS):
        for batch in range(max(BATCHES)):
            live = [rank for rank in range(SIZE) if batch < BATCHES[rank]]
            weight -= rate * np.mean([batch_value(rank, batch) for rank in live])
    return weight


def data(kind):
    x = np.array([[batch_value(RANK, batch)] for batch in range(BATCHES[RANK])], "float32")
    if kind == "arrays":
        return {"x": x, "y": x, "batch_size": 1, "shuffle": False}
    if kind == "tf.data":
        return {"x": tf.data.Dataset.from_tensor_slices((x, x)).batch(1)}

    def generate():
        yield from zip(x[:, None], x[:, None], strict=True)

    spec = tf.TensorSpec([1, 1], tf.float32)
    return {"x": tf.data.Dataset.from_generator(generate, output_signature=(spec, spec))}


def compiled(optimizer, **kwargs):
    model = weight_model()
    model.compile(hvd.DistributedOptimizer(optimizer), loss=loss_is_output, **kwargs)
    return model


@pytest.mark.parametrize("callbacks", ["broadcast", "none"])
@pytest.mark.parametrize("kind", ["arrays", "tf.data", "unknown length"])
def test_the_others_go_on_and_all_end_with_their_model(kind, callbacks):
    model = compiled(keras.optimizers.SGD(1 / 64))
    probe = Probe("on_test_begin")
    own = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if callbacks == "broadcast" else []
    model.fit(
        **data(kind),
        epochs=EPOCHS,
        validation_data=(np.ones((2, 1)), np.ones((2, 1))),
        callbacks=[*own, probe],
        verbose=0,
    )
    np.testing.assert_allclose(model.get_weights()[0][0, 0], expected_weight(), rtol=1e-6)
    assert len(probe.seen["on_test_begin"]) == EPOCHS
    for weights in [*probe.seen["on_test_begin"], model.get_weights()]:
        assert_same_on_all_ranks(weights)
    # Where Keras does not know the number of batches it counts one more step in each epoch, in
    # which the data turns out to have ended.
    steps = max(BATCHES) + (kind == "unknown length")
    assert everywhere(int(model.optimizer.iterations)) == [EPOCHS * steps] * SIZE


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
def test_other_ways_to_run_steps(options):
    model = compiled(keras.optimizers.SGD(1 / 64), **options)
    model.fit(**data("arrays"), epochs=EPOCHS, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0][0, 0], expected_weight(), rtol=1e-6)


def test_slots_and_moving_averages_are_those_of_the_longest_rank():
    optimizer = keras.optimizers.Adam(1 / 64, use_ema=True, ema_overwrite_frequency=None)
    model = compiled(optimizer)
    model.fit(**data("arrays"), epochs=1, verbose=0)
    assert_same_on_all_ranks([v.numpy() for v in optimizer.variables])


def test_accumulated_batches_of_a_rank_that_is_behind_do_not_count_twice():
    model = compiled(keras.optimizers.SGD(1.0, gradient_accumulation_steps=4))
    # 3, 5, ... batches: the first rank has three batches that were never applied, the last fewer.
    model.fit(**data("arrays"), epochs=1, verbose=0)
    optimizer = model.optimizer
    longest = everywhere([v.numpy() for v in optimizer._accumulated_gradients])[-1]
    behind = BATCHES[RANK] % 4 != BATCHES[-1] % 4
    (own,) = (v.numpy() for v in optimizer._accumulated_gradients)
    assert longest[0].any() == bool(BATCHES[-1] % 4)
    if behind:
        assert not own.any()
    assert_same_on_all_ranks(model.get_weights())


def test_stopping_in_the_middle_of_an_epoch_on_one_rank():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = RANK == 0 and batch == 1

    model = compiled(keras.optimizers.SGD(1 / 64))
    history = model.fit(**data("arrays"), epochs=5, callbacks=[Stop()], verbose=0)
    assert len(history.epoch) == 1
    assert_same_on_all_ranks(model.get_weights())
    assert int(model.optimizer.iterations) == max(BATCHES)


def test_local_variables_and_their_slots_stay():
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, name="own"), keras.layers.Dense(1, name="all")]
    )
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1 / 64, momentum=0.5), local_layers=model.get_layer("own")
    )
    model.compile(optimizer, loss=loss_is_output)
    model.fit(**data("arrays"), epochs=1, verbose=0)
    slots = [v.numpy() for v in optimizer.variables if "own" in v.path]
    assert len(slots) == 2
    by_rank = everywhere([*model.get_layer("own").get_weights(), *slots])
    assert any(not np.array_equal(a, b) for a, b in zip(by_rank[0], by_rank[-1], strict=True))
    assert_same_on_all_ranks(model.get_layer("all").get_weights())
    assert_same_on_all_ranks([v.numpy() for v in optimizer.variables if "all" in v.path])


def test_steps_of_ones_own_with_the_tape():
    class OwnStep(keras.Sequential):
        def train_step(self, batch):
            x, _ = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(x))
            tape = hvd.DistributedGradientTape(tape)
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(grads, self.trainable_variables)
            return {"loss": loss}

    model = OwnStep(weight_model().layers)
    model.compile(keras.optimizers.SGD(1 / 64))
    model.fit(
        **data("arrays"),
        epochs=EPOCHS,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        verbose=0,
    )
    np.testing.assert_allclose(model.get_weights()[0][0, 0], expected_weight(), rtol=1e-6)
