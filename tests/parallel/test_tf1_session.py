"""MonitoredTrainingSession: broadcast, checkpoints on rank 0 only, restoring, stopping."""

import os

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.tensorflow.hooks import BroadcastGlobalVariablesHook
from hvd_keras.tensorflow.optimizer import DistributedOptimizer

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = np.mean(range(1, SIZE + 1))
train = tf.compat.v1.train

REFERENCE = pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def make_graph(start, resource=True, with_step=True):
    """Loss (rank + 1) * sum(v): v loses 0.5 * MEAN with each step."""
    v = tf.compat.v1.get_variable("v", initializer=tf.constant(start), use_resource=resource)
    step = train.get_or_create_global_step() if with_step else None
    optimizer = DistributedOptimizer(train.GradientDescentOptimizer(0.5))
    return v, step, optimizer.minimize(tf.reduce_sum(v) * (RANK + 1.0), global_step=step)


def monitored_session(folder, hooks=()):
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    return train.MonitoredTrainingSession(
        checkpoint_dir=str(folder) if folder and RANK == 0 else None,
        config=config,
        hooks=[BroadcastGlobalVariablesHook(0), *hooks],
        log_step_count_steps=None,
    )


@REFERENCE
def test_variables_of_rank_0_then_a_loop_until_the_last_step(resource):
    v, _, train_op = make_graph([10.0 + RANK], resource)
    with monitored_session(None, [train.StopAtStepHook(last_step=4)]) as sess:
        np.testing.assert_allclose(sess.run(v), [10.0])
        steps = 0
        while not sess.should_stop():
            sess.run(train_op)
            steps += 1
    assert steps == 4
    assert {int(s) for s in hvd.allgather_object(steps)} == {4}


def test_restored_on_rank_0_and_broadcast(shared_tmp_path):
    folder = shared_tmp_path / "checkpoints"
    v, step, train_op = make_graph([1.0])
    with monitored_session(folder, [train.StopAtStepHook(last_step=3)]) as sess:
        while not sess.should_stop():
            sess.run(train_op)
    assert sorted(hvd.allgather_object(RANK == 0)) == [False] * (SIZE - 1) + [True]
    with tf.Graph().as_default():
        v, step, train_op = make_graph([100.0 * (RANK + 1)])
        with monitored_session(folder, [train.StopAtStepHook(last_step=5)]) as sess:
            np.testing.assert_allclose(sess.run(v), [1.0 - 1.5 * MEAN], rtol=1e-6)
            assert sess.run(step) == 3
            done = 0
            while not sess.should_stop():
                sess.run(train_op)
                done += 1
    assert done == 2
    restored = tf.train.load_checkpoint(str(folder))
    np.testing.assert_allclose(restored.get_tensor("v"), [1.0 - 2.5 * MEAN], rtol=1e-6)


def test_a_graph_without_a_global_step(shared_tmp_path):
    # The hooks that come with checkpoint_dir make one, on rank 0 alone.
    v, _, train_op = make_graph([float(RANK)], with_step=False)
    with monitored_session(shared_tmp_path) as sess:
        for _ in range(2):
            sess.run(train_op)
        np.testing.assert_allclose(sess.run(v), [-MEAN], rtol=1e-6)
    assert os.listdir(shared_tmp_path)


def test_a_hook_serves_one_graph_after_the_other():
    hook = BroadcastGlobalVariablesHook(SIZE - 1)
    for shift in (0.0, 5.0):
        with tf.Graph().as_default():
            v = tf.compat.v1.get_variable("v", initializer=tf.constant([RANK + shift]))
            with train.MonitoredTrainingSession(hooks=[hook]) as sess:
                np.testing.assert_array_equal(sess.run(v), [SIZE - 1 + shift])


def test_adagrad_slots_are_broadcast():
    start = tf.constant([1.0, 2.0]) * (RANK + 1.0)
    v = tf.compat.v1.get_variable("v", initializer=start)
    inner = train.AdagradOptimizer(0.1, initial_accumulator_value=0.1 * (RANK + 1))
    optimizer = DistributedOptimizer(inner)
    train_op = optimizer.minimize(tf.reduce_sum(v * v) / 2)
    with monitored_session(None) as sess:
        np.testing.assert_allclose(sess.run(optimizer.get_slot(v, "accumulator")), [0.1, 0.1])
        sess.run(train_op)
        values = hvd.allgather_object(sess.run(v).tolist())
    assert values == [values[0]] * SIZE
    expected = np.array([1, 2]) - 0.1 * np.array([1, 2]) / np.sqrt(0.1 + np.array([1, 4]))
    np.testing.assert_allclose(values[0], expected, rtol=1e-5)


def test_the_user_s_exception_comes_out_of_the_session():
    _, _, train_op = make_graph([1.0])
    with pytest.raises(KeyError, match="mine"), monitored_session(None) as sess:
        sess.run(train_op)
        raise KeyError("mine")
