"""Elastic states under the alias, on ranks that stay."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_keras import compat

compat.install()

import horovod.keras.elastic as keras_elastic  # noqa: E402
import horovod.tensorflow as hvd  # noqa: E402
from horovod.common.elastic import ObjectState  # noqa: E402
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt  # noqa: E402

pytestmark = pytest.mark.ranks(2, group="compat")

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def make_model(value):
    model = keras.Sequential(
        [
            keras.layers.Input([1]),
            keras.layers.Dense(
                1, use_bias=False, kernel_initializer=keras.initializers.Constant(value)
            ),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def test_objects():
    state = ObjectState(hvd.broadcast_object, hvd.rank, step=RANK + 5, names=[f"rank {RANK}"])
    state.sync()
    assert (state.step, state.names) == (5, ["rank 0"])
    state.step, state.names = 6, [*state.names, "more"]
    state.commit()
    state.step = 7
    state.names.append("lost")
    state.restore()
    assert (state.step, state.names) == (6, ["rank 0", "more"])


def test_variables_in_eager_code_are_sent():
    variables = [tf.Variable([RANK + 1.0]), tf.Variable([[RANK]])]
    state = hvd.elastic.TensorFlowState(variables, step=RANK)
    state.sync()
    np.testing.assert_array_equal(variables[0], [1.0])
    np.testing.assert_array_equal(variables[1], [[0]])
    variables[0].assign([9.0])
    state.restore()
    np.testing.assert_array_equal(variables[0], [1.0])
    assert state.step == 0


def test_variables_of_a_session_are_sent():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", initializer=tf.constant([RANK + 1.0]))
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session)
        state.sync()
        assert session.run(v) == [1.0]
        v.load([4.0], session)
        state.save()
        v.load([5.0], session)
        state.restore()
        assert session.run(v) == [4.0]


def test_model_and_optimizer_are_sent_and_restored():
    model = make_model(RANK + 1.0)
    x = np.ones([2, 1], np.float32) * (RANK + 1)
    model.fit(x, x, verbose=0)
    state = hvd.elastic.TensorFlowKerasState(model, batch=RANK, epoch=0)
    state.sync()

    def everything():
        return [v.numpy().tolist() for v in [*model.weights, *model.optimizer.variables]]

    synced = everything()
    assert hvd.allgather_object(synced) == [synced] * SIZE
    model.fit(x, x, verbose=0)
    assert everything() != synced
    state.restore()
    assert everything() == synced and state.batch == 0


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match="build it first"):
        keras_elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.parametrize("how", ["fewer epochs", "initial epoch"])
def test_epochs_are_counted(how):
    model = make_model(1.0)
    state = keras_elastic.KerasState(model, epoch=2, batch=0)
    commits = []
    state.commit = lambda: commits.append((state.epoch, state.batch))
    x = np.ones([6, 1], np.float32)
    options = {"epochs": 3} if how == "fewer epochs" else {"epochs": 5, "initial_epoch": 2}
    callbacks = [
        keras_elastic.UpdateEpochStateCallback(state),
        keras_elastic.UpdateBatchStateCallback(state),
        keras_elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    model.fit(x, x, batch_size=2, verbose=0, callbacks=callbacks, **options)
    assert state.epoch == 5 and state.batch == 0
    # After two batches, after the epoch; one batch is left to the next commit.
    assert commits[:3] == [(2, 1), (3, 0), (3, 0)]


@pytest.mark.parametrize("error", [KeyError("mine"), tf.errors.NotFoundError(None, None, "x")])
def test_the_user_s_errors_come_out(error):
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        raise error

    with pytest.raises(type(error)) as info:
        train(ObjectState(step=RANK))
    assert info.value is error and calls == [0]


def test_results_and_arguments():
    @hvd.elastic.run
    def train(state, factor, *, plus):
        """Trains."""
        return state.step * factor + plus

    assert train(ObjectState(step=3 + RANK), 2, plus=1) == 7
    assert (train.__name__, train.__doc__) == ("train", "Trains.")


def test_a_death_restores_the_state():
    state = ObjectState(step=1)

    @hvd.elastic.run
    def train(state):
        state.step = 2
        raise tf.errors.AbortedError(None, None, "rank 3 died")

    with pytest.raises(HorovodInternalError, match="rank 3 died"):
        train(state)
    assert state.step == 1


def test_an_interrupt_of_the_script_resets():
    state = ObjectState(step=RANK)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])

    @hvd.elastic.run
    def train(state):
        state.step += 1
        if state.step < 3:
            raise HostsUpdatedInterrupt(skip_sync=state.step == 2)
        return state.step

    assert train(state) == 3 and resets == [1, 2]
