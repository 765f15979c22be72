"""What the ranks agree on in the fit of Keras 2: when epochs end, who writes, who is told."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from tf_keras_cases import (
    OPTIMIZERS,
    RANK,
    SIZE,
    assert_identical_on_all_ranks,
    dataset,
    fit,
    legacy,
    sequential,
    state,
    tf_keras,
)

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(2)

BATCHES = [3 + 2 * rank for rank in range(SIZE)]
NEW_AND_LEGACY = pytest.mark.parametrize(
    "make", [tf_keras.optimizers.SGD, legacy.SGD], ids=["new", "legacy"]
)


def weight_model(optimizer, **options):
    """One weight w with loss w * x, so the gradient of a batch of one is its x."""
    model = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), 8.0, "float32")])
    model.compile(optimizer, loss=lambda y_true, y_pred: tf.reduce_mean(y_pred, -1), **options)
    return model


def batch_value(rank, batch):
    return float(2 ** (rank + 1) + batch)


def mean_gradient(batch):
    """Of the ranks that still train."""
    live = [rank for rank in range(SIZE) if batch < BATCHES[rank]]
    return np.mean([batch_value(rank, batch) for rank in live])


def uneven(known_length=True):
    x = np.array([[[batch_value(RANK, batch)]] for batch in range(BATCHES[RANK])], "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x))
    return data if known_length else data.filter(lambda x, y: True)


@NEW_AND_LEGACY
@pytest.mark.parametrize("known_length", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str
)
def test_ranks_with_fewer_batches_join(make, known_length, options):
    if not known_length and options.get("steps_per_execution"):
        pytest.skip("an execution that is cut short raises before its end")
    model = weight_model(hvd.DistributedOptimizer(make(1 / 64, momentum=0.5)), **options)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    one = (np.ones((2, 1)), np.ones((2, 1)))
    model.fit(uneven(known_length), epochs=2, verbose=0, callbacks=[callback], validation_data=one)
    weight, momentum = 8.0, 0.0
    for _ in range(2):
        for batch in range(max(BATCHES)):
            momentum = 0.5 * momentum - mean_gradient(batch) / 64
            weight += momentum
    np.testing.assert_allclose(model.get_weights()[0][0, 0], weight, rtol=1e-6)
    assert_identical_on_all_ranks([*model.weights, *state(model.optimizer)])


def accumulated_weight(passes, epochs):
    """The weight after these epochs, and the number of updates."""
    weight, count, updates = 8.0, 0, 0
    pending = [0.0] * SIZE
    for _ in range(epochs):
        for batch in range(max(BATCHES)):
            live = [rank for rank in range(SIZE) if batch < BATCHES[rank]]
            for rank in live:
                pending[rank] += batch_value(rank, batch)
            if (count + batch + 1) % passes == 0:
                weight -= np.mean([pending[rank] for rank in live]) / 64
                updates += 1
                for rank in live:
                    pending[rank] = 0.0
        for rank in range(SIZE):  # what a rank has not sent while the others made an update is lost
            if (count + BATCHES[rank]) % passes != (count + max(BATCHES)) % passes:
                pending[rank] = 0.0
        count += max(BATCHES)
    return weight, updates


@NEW_AND_LEGACY
@pytest.mark.parametrize("passes", [3, 4])
def test_accumulation_where_ranks_have_fewer_batches(make, passes):
    optimizer = hvd.DistributedOptimizer(make(1 / 64), backward_passes_per_step=passes)
    model = weight_model(optimizer)
    for epoch in range(3):
        model.fit(uneven(), epochs=1, verbose=0)
        assert_identical_on_all_ranks([*model.weights, *state(optimizer)])
        weight, updates = accumulated_weight(passes, epoch + 1)
        np.testing.assert_allclose(model.get_weights()[0][0, 0], weight, rtol=1e-6)
        assert int(optimizer.iterations.numpy()) == updates


def test_stopping_in_the_middle_of_an_epoch_on_one_rank():
    class Stop(tf_keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = RANK == 0 and batch == 1

    model = sequential()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["Adam"]())
    fit(model, optimizer, dataset(True), epochs=3, callbacks=[Stop()])
    assert hvd.allgather_object(len(model.history.epoch)) == [1] * SIZE
    assert_identical_on_all_ranks([*model.weights, *state(optimizer)])


@NEW_AND_LEGACY
def test_local_variables_keep_their_slots(make):
    model = sequential()
    optimizer = hvd.DistributedOptimizer(make(0.05, momentum=0.9))
    local = model.layers[0].kernel
    optimizer.register_local_var(local)
    model.compile(optimizer, "mse")
    steps = 4 + 2 * RANK  # so that the others take the variables of the last rank
    model.fit(dataset(True).take(steps), epochs=1, verbose=0, shuffle=False)
    slots = optimizer.momentums if hasattr(optimizer, "momentums") else None
    slot = slots[0] if slots else optimizer.get_slot(local, "momentum")
    for variable in (local, slot):
        copies = hvd.allgather_object(variable.numpy())
        assert np.any(copies[0] != copies[1])
    assert_identical_on_all_ranks([w for w in model.weights if w is not local])


def test_a_fit_that_exchanges_nothing_is_told():
    model = sequential()
    with pytest.warns(UserWarning, match="trains the model .* on rank . alone"):
        fit(model, OPTIMIZERS["Adam"](), dataset(True), epochs=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*alone")
        fit(model, hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), dataset(True), epochs=1)


@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_that_are_reduced_twice_are_told(passes):
    variable = tf.Variable(1.0)
    for make in (tf_keras.optimizers.SGD, legacy.SGD):
        for op in (hvd.Average, hvd.Sum):
            optimizer = hvd.DistributedOptimizer(make(0.1), op=op, backward_passes_per_step=passes)
            with hvd.DistributedGradientTape(tf.GradientTape(), op=op) as tape:
                loss = variable * 2.0
            grads = [(tape.gradient(loss, variable), variable)]
            if op is hvd.Sum:
                with pytest.raises(ValueError, match="reduces them again"):
                    optimizer.apply_gradients(grads)
            else:
                with pytest.warns(UserWarning, match="reduces them again"):
                    optimizer.apply_gradients(grads)


def test_one_progress_bar(capfd):
    model = sequential()
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["SGD"]()), "mse")
    model.fit(dataset(True), epochs=1, verbose=2)
    assert ("loss" in capfd.readouterr().out) == (RANK == 0)
