"""Saving and reading what was made under hvd.Strategy, and ranks with unequal numbers of steps."""

import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import everywhere
from strategy_cases import assert_same_bits, fit, joined_data, mlp, scope

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STRATEGY = hvd.Strategy()

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def folder(tmp_path):
    """The same folder on all ranks."""
    path = pathlib.Path(hvd.broadcast_object(str(tmp_path), name="test.folder"))
    yield path
    hvd.barrier()


def adam():
    return keras.optimizers.Adam(0.01)


def test_a_model_that_rank_0_saves(folder):
    """It is read without a strategy, and by all ranks under one; training goes on alike."""
    model, _ = fit(STRATEGY, mlp(), adam)
    path = folder / "model.keras"
    if RANK == 0:
        model.save(path)
    hvd.barrier()
    alone = keras.models.load_model(path)
    with STRATEGY.scope():
        together = keras.models.load_model(path)
    for one, other, original in zip(
        alone.get_weights(), together.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, original)
        np.testing.assert_array_equal(other, original)
    assert int(together.optimizer.iterations) == int(model.optimizer.iterations) == 8
    x, y = joined_data()
    for trained in model, together:
        keras.utils.set_random_seed(1)
        trained.fit(x, y, batch_size=16, verbose=0)
    for one, other in zip(model.get_weights(), together.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same_bits(together.variables)


def test_weights_that_all_ranks_save(folder):
    model, _ = fit(STRATEGY, mlp(), adam)
    model.save_weights(folder / f"{RANK}.weights.h5")
    other = mlp()()
    other.load_weights(folder / f"{RANK}.weights.h5")
    for one, original in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, original)


def test_checkpoints_of_rank_0(folder):
    model, _ = fit(STRATEGY, mlp(), adam)
    with scope(STRATEGY):
        own = tf.Variable(5.0, aggregation=tf.VariableAggregation.MEAN)
    checkpoint = tf.train.Checkpoint(model=model, own=own)
    saved = [np.asarray(v) for v in [*model.weights, *model.optimizer.variables]]
    if RANK == 0:
        checkpoint.save(folder / "checkpoint")
    hvd.barrier()
    model.fit(*joined_data(), verbose=0)
    own.assign(7.0)
    checkpoint.restore(tf.train.latest_checkpoint(folder)).assert_consumed()
    for value, variable in zip(saved, [*model.weights, *model.optimizer.variables], strict=True):
        np.testing.assert_array_equal(value, np.asarray(variable))
    assert own.numpy() == 5.0


def test_variables_that_are_combined_on_read(folder):
    """All ranks save, each for itself; what is restored has the same sum."""
    with STRATEGY.scope():
        var = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    STRATEGY.run(lambda: var.assign(tf.constant(RANK + 1.0)))
    expected = sum(range(1, SIZE + 1))
    checkpoint = tf.train.Checkpoint(var=var)
    path = checkpoint.write(folder / str(RANK))
    var.assign(0.0)
    checkpoint.read(path).assert_consumed()
    assert var.numpy() == expected


def test_saved_model(folder):
    model, _ = fit(STRATEGY, mlp(), adam)
    x, _ = joined_data(4)
    expected = model.predict_on_batch(x)
    if RANK == 0:
        model.export(folder / "exported", verbose=False)
    hvd.barrier()
    served = tf.saved_model.load(folder / "exported")
    np.testing.assert_allclose(served.serve(x), expected, rtol=1e-6)


def test_checkpoint_callbacks_on_every_rank(folder):
    """They are given the same path, and rank 0 writes; a later run goes on where this one ended."""
    best = folder / "best.keras"
    backup = folder / "backup"
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, monitor="loss", save_best_only=True),
        keras.callbacks.BackupAndRestore(backup),
    ]

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(STRATEGY, mlp(), adam, epochs=4, fit_options={"callbacks": [*callbacks, Stop()]})
    hvd.barrier()
    assert [p.name for p in folder.iterdir() if p.suffix == ".keras"] == ["best.keras"]
    model, history = fit(STRATEGY, mlp(), adam, epochs=4, fit_options={"callbacks": callbacks})
    assert everywhere(len(history["loss"])) == [2] * SIZE
    assert not os.path.exists(backup / "latest.weights.h5")
    hvd.barrier()
    saved = keras.models.load_model(best)
    for one, original in zip(saved.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, original)


# Unequal numbers of steps


def constant_slope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), 8.0, "float32")])
    return model


@pytest.mark.parametrize("known", [True, False])
def test_ranks_with_fewer_steps_join(known):
    """Rank r has r + 2 steps of one row, r + 1, whose value is the gradient."""
    with STRATEGY.scope():
        model = constant_slope()
        model.compile(keras.optimizers.SGD(1 / 64), loss=lambda y, z: z, metrics=["mae"])

    def rows(context):
        x = np.full((RANK + 2, 1), RANK + 1.0, "float32")
        data = tf.data.Dataset.from_tensor_slices((x, x)).batch(1)
        return data if known else data.filter(lambda x, y: True)

    class Evaluating(keras.callbacks.Callback):
        """In the middle of the epoch, where all ranks still train."""

        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                self.model.evaluate(np.ones((SIZE, 1)), np.ones((SIZE, 1)), verbose=0)
                self.model.reset_metrics()

    distributed = STRATEGY.distribute_datasets_from_function(rows)
    history = model.fit(distributed, epochs=2, verbose=0, callbacks=[Evaluating()]).history
    weight = 8.0
    losses = []
    for _ in range(2):
        seen = []
        for step in range(SIZE + 1):
            live = [rank + 1 for rank in range(SIZE) if step < rank + 2]
            seen += [weight * value for value in live if step > 0]
            weight -= np.mean(live) / 64
        losses.append(np.mean(seen))
    np.testing.assert_allclose(model.get_weights()[0], [[weight]], rtol=1e-6)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-6)
    assert_same_bits(model.weights)
    assert len({str(h) for h in everywhere(history)}) == 1


def test_a_loop_with_unequal_steps_is_told():
    """Without fit nobody joins; the ranks that wait get an error, not a hang."""
    step = tf.function(lambda: STRATEGY.reduce("SUM", tf.constant(1.0), axis=None))
    for _ in range(2):
        step()
    if RANK == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1"):
            step()
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0"):
            STRATEGY.gather(tf.constant([1.0]), axis=0)
