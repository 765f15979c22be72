"""What fit tells its users: ranks that train alone, gradients reduced twice, progress bars."""

import functools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import assert_same_on_all_ranks, everywhere

import hvd_keras as hvd

hvd.init()
ALONE = "trains the model .* on rank \\d+ alone"


def data():
    x = np.full((6, 3), hvd.rank() + 1.0, "float32")
    return x, x[:, :1]


def model(kind=keras.Sequential):
    keras.utils.set_random_seed(3)
    return kind([keras.Input((3,)), keras.layers.Dense(1)])


def warnings_of(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught]


class OwnStep(keras.Sequential):
    """A step of the user's own: it reduces if told so."""

    reduces = False

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        if self.reduces:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class OwnReducingStep(OwnStep):
    reduces = True


@pytest.mark.parametrize("callbacks", [True, False])
@pytest.mark.parametrize("kind", [keras.Sequential, OwnStep])
def test_a_fit_that_exchanges_nothing_is_told(kind, callbacks):
    alone = model(kind)
    alone.compile("sgd", "mse")
    own = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if callbacks else []
    messages = warnings_of(lambda: alone.fit(*data(), batch_size=2, verbose=0, callbacks=own))
    assert len([m for m in messages if re.search(ALONE, m)]) == 1


def test_a_fit_that_reduces_is_not():
    together = model()
    together.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    with_tape = model(OwnReducingStep)
    with_tape.compile("sgd", "mse")
    for trained in together, with_tape:
        messages = warnings_of(lambda m=trained: m.fit(*data(), batch_size=2, epochs=2, verbose=0))
        assert not [m for m in messages if re.search(ALONE, m)]


# Eager tensors do not know what they were made of, so clipped ones are not recognized.
@pytest.mark.parametrize("graph, clips", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=str)
def test_wrapped_tape_and_wrapped_optimizer(graph, clips, op):
    trained = model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=op)
    x, y = data()

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(trained(x) - y))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, trained.trainable_variables)
        if clips:
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply(gradients, trained.trainable_variables)

    run = tf.function(step) if graph else step
    if op is hvd.Average:
        assert [m for m in warnings_of(run) if "DistributedGradientTape" in m]
        assert_same_on_all_ranks(trained.get_weights())
    else:
        with pytest.raises(ValueError, match="hvd.Sum of what is reduced already"):
            run()


def test_synchronized_statistics_are_not_taken_for_a_second_reduction():
    trained = keras.Sequential(
        [keras.Input((3,)), hvd.SyncBatchNormalization(), keras.layers.Dense(1)]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Sum)
    trained.compile(optimizer, "mse")
    assert not [m for m in warnings_of(lambda: trained.fit(*data(), verbose=0)) if "Tape" in m]


def test_the_progress_bar_is_the_first_ranks(capsys):
    trained = model()
    trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    trained.fit(*data(), verbose=1)
    trained.evaluate(*data(), verbose=1)
    trained.predict(data()[0], verbose=1)
    bars = everywhere(capsys.readouterr().out.count("/step"))
    assert bars[0] > 0 and bars[1:] == [0] * (hvd.size() - 1)


def test_best_model_checkpoint(shared_tmp_path):
    trained = model()
    trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="Set callback.filepath before fit"):
        trained.fit(*data(), verbose=0, callbacks=[best])
    best.filepath = str(shared_tmp_path / "best.keras")
    trained.fit(*data(), verbose=0, epochs=3, callbacks=[best])
    hvd.barrier()
    loaded = keras.saving.load_model(best.filepath)
    assert_same_on_all_ranks(loaded.get_weights())
    assert not any(
        np.array_equal(a, b)
        for a, b in zip(loaded.get_weights(), model().get_weights(), strict=True)
    )


def unequal(optimizer=None):
    """A model whose kernel is another one on each rank, and whose bias is the same."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(1, name="first"), keras.layers.Dense(1, name="last")]
    different = keras.Sequential([keras.Input((3,)), *layers], name="net")
    layers[1].kernel.assign(np.full((1, 1), 2.0 + hvd.rank()))
    different.compile(optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(2**-10)), "mse")
    return different


def differ(caught):
    return [m for m in caught if "differ from those on rank 0" in m]


def test_weights_that_differ_are_told_once():
    net = unequal()
    caught = differ(warnings_of(lambda: net.fit(*data(), epochs=3, verbose=0)))
    assert len(caught) == 1
    assert f"rank {hvd.rank()}: at the end of an epoch" in caught[0]
    assert re.search("1 of 4 trainable variables, the first of them '.*last/kernel'", caught[0])
    others = ", ".join(map(str, range(1, hvd.size())))
    assert f"of the model 'net' on rank{'s' if hvd.size() > 2 else ''} {others} differ" in caught[0]


def test_weights_that_are_broadcast_are_not_told():
    net = unequal()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit = functools.partial(net.fit, *data(), epochs=2, verbose=0, callbacks=callbacks)
    assert not differ(warnings_of(fit))
    net = unequal()
    hvd.broadcast_variables(net.weights, root_rank=0)
    assert not differ(warnings_of(lambda: net.fit(*data(), epochs=2, verbose=0)))


def test_weights_of_each_ranks_own_are_not_told():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(2**-10))
    net = unequal(optimizer)
    optimizer.register_local_var(net.layers[1].kernel)
    assert not differ(warnings_of(lambda: net.fit(*data(), epochs=2, verbose=0)))


def test_a_learning_rate_that_one_rank_changes_is_told():
    class Change(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and hvd.rank() == 1:
                self.model.optimizer.learning_rate.assign(2**-5)

    net = model()
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(2**-10)), "mse")
    fit = functools.partial(net.fit, *data(), epochs=3, verbose=0, callbacks=[Change()])
    caught = differ(warnings_of(fit))
    assert len(caught) == 1
    assert "on rank 1 differ" in caught[0]
