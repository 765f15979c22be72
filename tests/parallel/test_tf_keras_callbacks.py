"""The callbacks in the fit of Keras 2, and what else works on its models."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_keras_cases import (
    BATCH,
    FEATURES,
    OPTIMIZERS,
    RANK,
    SIZE,
    STEPS,
    assert_equal,
    assert_identical_on_all_ranks,
    dataset,
    fit,
    joined_batches,
    legacy,
    one_process,
    sequential,
    state,
    tf_keras,
)

import hvd_keras as hvd
import hvd_keras.tf_keras as hvd2

pytestmark = pytest.mark.ranks(2)

NEW_AND_LEGACY = pytest.mark.parametrize(
    "make", [OPTIMIZERS["Adam"], OPTIMIZERS["legacy_Adam"]], ids=["new", "legacy"]
)


class Recorder(tf_keras.callbacks.Callback):
    """Keeps what it sees: rates by batch, logs by epoch."""

    def __init__(self):
        super().__init__()
        self.rates, self.logs, self.end = [], [], None

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))

    def on_train_end(self, logs=None):
        self.end = dict(logs)


# BroadcastGlobalVariablesCallback.


@NEW_AND_LEGACY
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"steps_per_execution": 5}])
def test_broadcast_gives_all_ranks_the_variables_of_one(make, options):
    # Rank 0 has trained before, so it has slots, steps and a learning rate of its own.
    model = sequential(seed=RANK)
    optimizer = hvd.DistributedOptimizer(make())
    model.compile(optimizer, "mse", **options)
    if RANK == 0:
        alone = fit(sequential(), make(), dataset(False), epochs=1)
        model.set_weights(alone.get_weights())
        build(model)
        for ours, theirs in zip(state(optimizer), state(alone.optimizer), strict=True):
            ours.assign(theirs)
        optimizer.learning_rate = 0.02
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(dataset(True), epochs=1, verbose=0, shuffle=False, callbacks=[callback])
    assert float(optimizer.learning_rate.numpy()) == np.float32(0.02)
    assert int(optimizer.iterations.numpy()) == 2 * STEPS

    reference = fit(sequential(), make(), dataset(False), epochs=1)
    reference.optimizer.learning_rate = 0.02
    reference.fit(dataset(False), epochs=1, verbose=0, shuffle=False)
    assert_equal(model, reference)


def build(model):
    optimizer = model.optimizer
    if isinstance(optimizer, legacy.Optimizer):
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)


def test_broadcast_of_the_loss_scale():
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = sequential(seed=RANK)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    scale = tf_keras.mixed_precision.LossScaleOptimizer
    inner = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.01))
    optimizer = scale(inner, initial_scale=2.0 ** (4 + RANK))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, optimizer, dataset(True), epochs=1, callbacks=[callback])
    assert float(optimizer.loss_scale.numpy()) == 2.0**4
    assert_identical_on_all_ranks(model.trainable_variables)


def test_broadcast_leaves_local_variables_alone():
    model = sequential(seed=RANK)
    bias = model.layers[0].bias
    bias.assign(tf.fill(bias.shape, float(RANK)))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[bias])
    fit(model, hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.0)), dataset(True), 1, [callback])
    assert np.all(bias.numpy() == RANK)
    assert_identical_on_all_ranks([w for w in model.weights if w is not bias])


def test_moving_statistics_become_the_mean_over_ranks():
    normalization = tf_keras.layers.BatchNormalization(momentum=0.0)
    model = sequential(normalization)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    recorder = Recorder()
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.0))
    fit(model, optimizer, dataset(True), 1, [callback, recorder])
    x, _ = joined_batches()
    hidden = model.layers[0](x[-1]).numpy()  # momentum 0: the last batch is all they know
    np.testing.assert_allclose(normalization.moving_mean.numpy(), hidden.mean(0), atol=1e-6)
    assert_identical_on_all_ranks(model.weights)


def test_broadcast_finds_different_models():
    extra = [tf_keras.layers.Dense(16)] if RANK else []
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="models and optimizers differ"):
        fit(sequential(*extra), optimizer, dataset(True), 1, [callback])


# MetricAverageCallback, hvd.evaluate, hvd.predict.


def classifier(learning_rate=0.0):
    tf_keras.utils.set_random_seed(3)
    model = tf_keras.Sequential(
        [tf_keras.Input((FEATURES,)), tf_keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        hvd.DistributedOptimizer(tf_keras.optimizers.SGD(learning_rate)),
        "binary_crossentropy",
        metrics=[
            "accuracy",
            tf_keras.metrics.AUC(name="auc"),
            tf_keras.metrics.Precision(name="precision"),
        ],
    )
    return model


def labelled(rows, seed):
    x = np.random.default_rng(seed).normal(size=(rows, FEATURES)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0.3).astype("float32")


def uneven(x, y):
    """Rank 0 gets a quarter of the rows."""
    cut = len(x) // 4
    return (x[:cut], y[:cut]) if RANK == 0 else (x[cut:], y[cut:])


def test_metrics_are_those_of_all_data():
    train, validation = labelled(40, 1), labelled(24, 2)
    one = classifier()
    expected = one.evaluate(*train, verbose=0, return_dict=True)
    for name, value in one.evaluate(*validation, verbose=0, return_dict=True).items():
        expected[f"val_{name}"] = value
    (x, y), mine = uneven(*train), uneven(*validation)
    recorder = Recorder()
    # As many steps everywhere: the rate is 0, so that a model sees its part, whatever the batches.
    history = classifier().fit(
        x,
        y,
        batch_size=10 if RANK == 0 else 30,
        epochs=2,
        verbose=0,
        validation_data=mine,
        callbacks=[hvd.callbacks.MetricAverageCallback(), recorder],
    )
    assert set(expected) == set(history.history)
    for name, value in expected.items():
        np.testing.assert_allclose(history.history[name], [value] * 2, rtol=1e-5, err_msg=name)
    assert recorder.logs[-1] == recorder.end
    assert hvd.allgather_object(history.history) == [history.history] * SIZE


def test_evaluate_and_predict_equal_one_process():
    x, y = labelled(31, 4)
    one = classifier()
    expected = one.evaluate(x, y, batch_size=7, return_dict=True, verbose=0)
    result = hvd.evaluate(classifier(), *hvd.shard((x, y), even=False), batch_size=4)
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        hvd.predict(one, x, batch_size=2), one.predict(x, verbose=0), rtol=1e-6
    )


# Learning rates.


@pytest.mark.parametrize("make", [tf_keras.optimizers.SGD, legacy.SGD], ids=["new", "legacy"])
def test_warmup_and_schedule(make):
    recorder = Recorder()
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: 0.1**epoch, start_epoch=2),
        recorder,
    ]
    fit(sequential(), hvd.DistributedOptimizer(make(0.25)), dataset(True), 4, callbacks)
    progress = np.minimum((np.arange(2 * STEPS) + 1) / STEPS / 2, 1)
    expected = np.concatenate(
        [0.5 / SIZE * (1 + (SIZE - 1) * progress), [0.5 * 0.01] * STEPS, [0.5 * 0.001] * STEPS]
    )
    np.testing.assert_allclose(recorder.rates, expected, rtol=1e-5)
    last = [recorder.rates[(epoch + 1) * STEPS - 1] for epoch in range(4)]
    assert [logs["lr"] for logs in recorder.logs] == last


def test_batch_hooks_are_called_though_no_other_callback_has_any():
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2)
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.25))
    model = fit(sequential(), optimizer, dataset(True), 2, [warmup])
    half = 0.5 / SIZE * (1 + (SIZE - 1) / 2)
    np.testing.assert_allclose(model.history.history["lr"], [half, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf_keras.optimizers.SGD(0.5, momentum=0.5),
        lambda: tf_keras.optimizers.RMSprop(0.5, momentum=0.5),
        lambda: legacy.SGD(0.5, momentum=0.5),
        lambda: legacy.RMSprop(0.5, momentum=0.5),
    ],
    ids=["SGD", "RMSprop", "legacy_SGD", "legacy_RMSprop"],
)
def test_momentum_is_corrected(make):
    seen = []

    class Momentum(tf_keras.callbacks.Callback):
        def buffers(self):
            optimizer = self.model.optimizer
            names = ("m/", "momentum")  # of the new SGD, and of the others
            found = [v for v in state(optimizer) if any(name in v.name for name in names)]
            return [v.numpy().copy() for v in found]

        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.buffers())

        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                seen.append(self.buffers())

    schedule = hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: 0.25**epoch)
    optimizer = hvd.DistributedOptimizer(make())
    fit(sequential(), optimizer, dataset(True), 2, [schedule, Momentum()])
    assert len(seen[0]) == 6 and any(np.abs(buffer).max() > 0 for buffer in seen[0])
    for before, after in zip(seen[0], seen[1], strict=True):
        np.testing.assert_array_equal(after, before * np.float32(0.25))


@pytest.mark.parametrize("make", [tf_keras.optimizers.SGD, legacy.SGD], ids=["new", "legacy"])
def test_a_rate_that_cannot_be_set(make):
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    callback = hvd.callbacks.LearningRateScheduleCallback(0.5, 0.5)
    with pytest.raises(ValueError, match="was made with a ExponentialDecay"):
        fit(sequential(), hvd.DistributedOptimizer(make(rate)), dataset(True), 1, [callback])


# Stopping.


@NEW_AND_LEGACY
def test_early_stopping_on_values_that_differ(make):
    # Without agreement rank 0 would stop after two epochs and the others wait for it.
    stop = tf_keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10 if RANK == 0 else 0)
    model = fit(sequential(), hvd.DistributedOptimizer(make()), dataset(True), 6, [stop])
    assert len(model.history.epoch) == 2
    assert hvd.allgather_object(model.stop_training) == [True] * SIZE


# Rank 0 alone.


def test_rank_zero_runs_callbacks_of_keras_2(shared_tmp_path):
    logger = tf_keras.callbacks.CSVLogger(str(shared_tmp_path / f"{RANK}.csv"))
    recorder = Recorder()
    callbacks = [hvd.callbacks.RankZero(logger), hvd.callbacks.RankZero(recorder)]
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1))
    fit(sequential(), optimizer, dataset(True), 2, callbacks)
    hvd.barrier("test.csv")
    assert os.listdir(shared_tmp_path) == ["0.csv"]
    assert len(recorder.rates) == (2 * STEPS if RANK == 0 else 0)
    for refused in (
        tf_keras.callbacks.EarlyStopping(),
        tf_keras.callbacks.ReduceLROnPlateau(),
        tf_keras.callbacks.BackupAndRestore(str(shared_tmp_path)),
    ):
        with pytest.raises(ValueError, match="on all ranks"):
            hvd.callbacks.RankZero(refused)


@pytest.mark.parametrize("ending", ["keras", "h5", "weights.h5"])
def test_checkpoint_of_rank_zero(shared_tmp_path, ending):
    model = sequential()
    checkpoint = hvd2.callbacks.RankZeroModelCheckpoint(
        str(shared_tmp_path / f"{{epoch}}.{ending}"), save_weights_only=ending == "weights.h5"
    )
    assert isinstance(checkpoint, tf_keras.callbacks.ModelCheckpoint)
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), dataset(True), 2, [checkpoint])
    hvd.barrier("test.checkpoint")
    assert sorted(os.listdir(shared_tmp_path)) == [f"1.{ending}", f"2.{ending}"]
    again = sequential(seed=9)
    again.load_weights(str(shared_tmp_path / f"2.{ending}"))
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_checkpoint_knows_which_metrics_are_to_grow(shared_tmp_path):
    # Keras 2 takes it from the name; only the first epoch is written, since nothing gets better.
    model = classifier()
    x, y = labelled(8, 1)
    checkpoint = hvd2.callbacks.RankZeroModelCheckpoint(
        str(shared_tmp_path / "{epoch}.keras"), monitor="accuracy", save_best_only=True
    )
    model.fit(x, y, epochs=3, verbose=0, callbacks=[checkpoint])
    hvd.barrier("test.checkpoint")
    assert os.listdir(shared_tmp_path) == ["1.keras"]
    assert checkpoint.monitor_op is np.greater


def test_checkpoints_are_files():
    with pytest.raises(ValueError, match=r"ends\s+in .keras or .h5"):
        hvd2.callbacks.RankZeroModelCheckpoint("saved_model")


# Saving and loading.


@pytest.mark.parametrize("name", ["momentum", "Adam", "legacy_SGD", "legacy_Adam"])
@pytest.mark.parametrize("ending", [".keras", ".h5", ""], ids=["keras", "h5", "saved_model"])
def test_training_goes_on_where_it_was(shared_tmp_path, name, ending):
    make = OPTIMIZERS[name]
    if name.startswith("legacy") and ending == ".keras":
        pytest.skip("Keras 2 itself saves no slots of legacy optimizers so")
    path = str(shared_tmp_path / f"model{ending}")
    first = fit(sequential(), hvd.DistributedOptimizer(make()), dataset(True), epochs=1)
    if RANK == 0:
        first.save(path)
    hvd.barrier("test.saved")
    model = hvd.load_model(path, name="loaded")
    assert isinstance(model, tf_keras.Model)
    assert type(model.optimizer).__name__ == type(make()).__name__
    assert model.optimizer.process_set is hvd.global_process_set
    assert int(model.optimizer.iterations.numpy()) == STEPS
    model.fit(dataset(True), epochs=1, verbose=0, shuffle=False)
    assert_equal(model, one_process(make))


def test_loaded_with_a_loss_scale(shared_tmp_path):
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = sequential()
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), dataset(True), epochs=1)
    path = str(shared_tmp_path / "scaled.keras")
    if RANK == 0:
        model.save(path)
    hvd.barrier("test.saved")
    tf_keras.mixed_precision.set_global_policy("mixed_float16")  # as Keras 2 wants it
    try:
        again = hvd.load_model(path)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert isinstance(again.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    again.fit(dataset(True), epochs=1, verbose=0, shuffle=False)
    assert_identical_on_all_ranks(again.trainable_variables)
    assert int(again.optimizer.iterations.numpy()) == 2 * STEPS


LOAD = """
import sys
sys.modules["hvd_keras"] = None  # importing it fails
import numpy as np, tf_keras
for path in sys.argv[1:]:
    model = tf_keras.models.load_model(path)
    before = int(model.optimizer.iterations)
    model.fit(np.ones((8, 5)), np.ones((8, 1)), batch_size=4, verbose=0)
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    print(type(inner).__module__, type(inner).__name__, before, int(optimizer.iterations))
"""


def test_saved_models_load_without_this_package(tmp_path):
    if RANK:
        return
    alone = hvd.DistributedOptimizer
    paths = []
    for name, ending in [("Adam", "keras"), ("Adam", "h5"), ("legacy_Adam", "h5"), ("Adam", "tf")]:
        model = sequential()
        model.compile(OPTIMIZERS[name](), tf_keras.losses.MeanSquaredError())
        model.fit(np.ones((8, FEATURES)), np.ones((8, 1)), batch_size=4, verbose=0)
        alone(model.optimizer)
        paths.append(str(tmp_path / f"{name}.{ending}"))
        model.save(paths[-1])
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    new, old = "tf_keras.src.optimizers.adam", "tf_keras.src.optimizers.legacy.adam"
    assert done.stdout.splitlines() == [
        f"{new} Adam 2 4",
        f"{new} Adam 2 4",
        f"{old} Adam 2 4",
        f"{new} Adam 0 2",  # Keras 2 itself does not restore optimizers from these
    ]


@tf_keras.saving.register_keras_serializable(package="mine")
class OwnSGD(tf_keras.optimizers.SGD):
    """An optimizer of the user's."""


def test_an_optimizer_of_ones_own_is_saved_under_its_name(shared_tmp_path):
    path = str(shared_tmp_path / "own.keras")
    model = fit(sequential(), hvd.DistributedOptimizer(OwnSGD(0.1)), dataset(True), epochs=1)
    if RANK == 0:
        model.save(path)
    hvd.barrier("test.saved")
    assert type(tf_keras.models.load_model(path).optimizer) is OwnSGD
    assert isinstance(hvd.load_model(path).optimizer, OwnSGD)


def test_files_of_keras_3_are_still_for_keras_3(shared_tmp_path):
    import keras

    path = str(shared_tmp_path / "three.keras")
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    if RANK == 0:
        model.save(path)
    hvd.barrier("test.saved")
    assert isinstance(hvd.load_model(path), keras.Model)


# SyncBatchNormalization.


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axis", [-1, 1])
def test_sync_batch_normalization_layer(masked, axis):
    if masked and axis == 1:
        pytest.skip("a mask has no channels")
    parts = [
        np.random.default_rng(r).normal(100, 2 + r, (2 + r, 6, 3)).astype("float32")
        for r in range(SIZE)
    ]
    masks = [np.random.default_rng(9 + r).random((2 + r, 6)) < 0.6 for r in range(SIZE)]
    ours = hvd2.SyncBatchNormalization(axis=axis)
    theirs = tf_keras.layers.BatchNormalization(axis=axis, fused=False)
    mine = ours(parts[RANK], training=True, mask=masks[RANK] if masked else None)
    whole = theirs(
        np.concatenate(parts), training=True, mask=np.concatenate(masks) if masked else None
    )
    begin = sum(len(part) for part in parts[:RANK])
    np.testing.assert_allclose(mine, whole[begin : begin + len(parts[RANK])], atol=2e-5)
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    copy = tf_keras.layers.deserialize(tf_keras.layers.serialize(ours))
    assert type(copy) is hvd2.SyncBatchNormalization


def test_sync_batch_normalization_trains_like_one_process():
    reference = fit(
        sequential(tf_keras.layers.BatchNormalization()), OPTIMIZERS["SGD"](), dataset(False)
    )
    model = fit(
        sequential(hvd2.SyncBatchNormalization()),
        hvd.DistributedOptimizer(OPTIMIZERS["SGD"]()),
        dataset(True),
    )
    for a, b in zip(model.weights, reference.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    assert_identical_on_all_ranks(model.weights)


def test_a_name_stands_for_an_optimizer_of_keras_2():
    optimizer = hvd2.DistributedOptimizer("adam")
    assert isinstance(optimizer, tf_keras.optimizers.Adam)
    assert BATCH and optimizer.process_set is hvd.global_process_set
