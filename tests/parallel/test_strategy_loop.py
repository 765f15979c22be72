"""hvd.Strategy in training loops of one's own: run, reduce, gather, and the replica context."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import everywhere
from strategy_cases import assert_same_bits, joined_data

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STRATEGY = hvd.Strategy()
BATCH = 16
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

pytestmark = pytest.mark.ranks(2)
total = sum(range(1, SIZE + 1))  # of rank + 1 over the ranks


@pytest.fixture(params=["eager", "graph"])
def call(request):
    """Calls a function with strategy.run, eagerly or in a tf.function."""

    def run(function, *args):
        def body(*args):
            return STRATEGY.run(function, args=args)

        return (body if request.param == "eager" else tf.function(body))(*args)

    return run


# The loops of TensorFlow's tutorial on distributed training; only the constructor is ours.


class Loop:
    """A model and the functions that train it, made in a strategy's scope."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            keras.utils.set_random_seed(3 if strategy.num_replicas_in_sync == 1 else 3 + RANK)
            self.model = keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.1)),
                    keras.layers.Dense(1),
                ]
            )
            self.optimizer = keras.optimizers.Adam(0.01)
            self.loss = keras.losses.MeanSquaredError(reduction="none")
            self.error = keras.metrics.MeanAbsoluteError()

    def train_step(self, inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = tf.nn.compute_average_loss(
                self.loss(y, predictions), global_batch_size=BATCH
            ) + tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.error.update_state(y, predictions)
        return loss

    def distributed_step(self, inputs):
        losses = self.strategy.run(self.train_step, args=(inputs,))
        return self.strategy.reduce(SUM, losses, axis=None)

    def over_batches(self, dataset):
        step = tf.function(self.distributed_step)
        return tf.add_n([step(inputs) for inputs in dataset]) / 3

    def eagerly(self, dataset):
        return tf.add_n([self.distributed_step(inputs) for inputs in dataset]) / 3

    def with_a_compiled_step(self, dataset):
        self.train_step = tf.function(self.train_step)
        return self.eagerly(dataset)

    def over_an_iterator(self, dataset):
        step = tf.function(self.distributed_step)
        iterator = iter(dataset)
        return (step(next(iterator)) + step(next(iterator)) + step(next(iterator))) / 3

    def with_the_data_set_in_a_function(self, dataset):
        @tf.function
        def epoch(dataset):
            total, count = 0.0, 0.0
            for inputs in dataset:
                total += self.distributed_step(inputs)
                count += 1.0
            return total / count

        return epoch(dataset)

    def with_the_iterator_in_a_function(self, dataset):
        @tf.function
        def steps(iterator):
            total = 0.0
            for _ in tf.range(3):
                total += self.distributed_step(next(iterator))
            return total / 3

        return steps(iter(dataset))


@pytest.mark.parametrize(
    "way",
    [
        "over_batches",
        "eagerly",
        "with_a_compiled_step",
        "over_an_iterator",
        "with_the_data_set_in_a_function",
        "with_the_iterator_in_a_function",
    ],
)
def test_loops_of_the_tutorial(way):
    """The same as one process, though the ranks' seeds differ."""
    data = tf.data.Dataset.from_tensor_slices(joined_data(3 * BATCH)).batch(BATCH)
    alone, together = Loop(tf.distribute.get_strategy()), Loop(STRATEGY)
    expected = [getattr(alone, way)(data) for _ in range(2)]
    distributed = STRATEGY.experimental_distribute_dataset(data)
    losses = [getattr(together, way)(distributed) for _ in range(2)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(together.error.result(), alone.error.result(), rtol=1e-5)
    for ours, theirs in zip(together.model.weights, alone.model.weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
    assert_same_bits(together.model.weights)


# Reducing and gathering


def test_reduce(call):
    mine = call(lambda: tf.fill([RANK + 1, 2], RANK + 1.0))
    scalar = tf.constant(RANK + 1.0)
    assert STRATEGY.reduce(SUM, scalar, axis=None) == total
    assert STRATEGY.reduce("MEAN", scalar, axis=None) == total / SIZE
    squares = sum((rank + 1) ** 2 for rank in range(SIZE))
    np.testing.assert_array_equal(STRATEGY.reduce("SUM", mine, axis=0), [squares] * 2)
    np.testing.assert_allclose(STRATEGY.reduce("MEAN", mine, axis=0), [squares / total] * 2)
    assert STRATEGY.reduce("SUM", RANK + 1, axis=None).numpy() == total
    assert STRATEGY.experimental_local_results(scalar) == (scalar,)


def test_gather():
    mine = tf.fill([2, RANK + 1], RANK)
    expected = [rank for rank in range(SIZE) for _ in range(rank + 1)]
    for axis in 1, -1:
        np.testing.assert_array_equal(STRATEGY.gather(mine, axis=axis), [expected] * 2)
    np.testing.assert_array_equal(STRATEGY.gather(tf.transpose(mine), axis=0)[:, 0], expected)
    with pytest.raises(ValueError, match=r"along axis 2.*shape \(2, \d\)"):
        STRATEGY.gather(mine, axis=2)
    with pytest.raises(ValueError, match=r"tf.reshape\(value, \[1\]\)"):
        STRATEGY.gather(tf.constant(1.0), axis=0)
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        STRATEGY.gather(tf.IndexedSlices(tf.ones([1, 2]), [0]), axis=0)


def test_what_a_replica_knows(call):
    def function():
        context = tf.distribute.get_replica_context()
        assert context.strategy is STRATEGY and tf.distribute.has_strategy()
        assert context.num_replicas_in_sync == SIZE
        assert not tf.distribute.in_cross_replica_context()
        return context.replica_id_in_sync_group

    assert call(function) == RANK
    assert STRATEGY.num_replicas_in_sync == SIZE
    with STRATEGY.scope():
        assert tf.distribute.in_cross_replica_context()


def test_collectives_of_a_replica(call):
    def function():
        context = tf.distribute.get_replica_context()
        value = {"a": tf.constant(RANK + 1.0), "b": [tf.fill([2], RANK + 1)]}
        summed = context.all_reduce("SUM", value)
        mean = context.all_reduce(MEAN, tf.constant(RANK + 1.0))
        gathered = context.all_gather(tf.fill([RANK + 1, 1], RANK), axis=0)
        slices = tf.IndexedSlices(tf.fill([1, 1], RANK + 1.0), [RANK], [SIZE, 1])
        dense = tf.convert_to_tensor(context.all_reduce("SUM", slices))
        return summed, mean, gathered, dense

    summed, mean, gathered, dense = call(function)
    assert summed["a"] == total and mean == total / SIZE
    np.testing.assert_array_equal(summed["b"][0], [total] * 2)
    expected = [[rank] for rank in range(SIZE) for _ in range(rank + 1)]
    np.testing.assert_array_equal(gathered, expected)
    np.testing.assert_array_equal(dense[:, 0], np.arange(1.0, SIZE + 1))


def test_gradients_of_the_collectives(call):
    """Those of the sum of all ranks' results."""

    def function():
        context = tf.distribute.get_replica_context()
        x = tf.constant([RANK + 1.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            summed = (RANK + 1) * context.all_reduce("SUM", x)
            gathered = (RANK + 1) * context.all_gather(x, axis=0)
        return tape.gradient(summed, x), tape.gradient(gathered, x)

    of_sum, of_gather = call(function)
    np.testing.assert_array_equal(of_sum, [total])
    np.testing.assert_array_equal(of_gather, [total])


def test_merge_call_and_update(call):
    with STRATEGY.scope():
        variable = tf.Variable(1.0)

    def merge(strategy, value):
        assert tf.distribute.in_cross_replica_context()
        extended = strategy.extended
        (summed,) = extended.batch_reduce_to(SUM, [(value, variable)])
        mean = extended.reduce_to("MEAN", value, variable)
        extended.update(variable, lambda v, a, b: v.assign_add(a + b), args=(summed, mean))
        return mean

    def function():
        context = tf.distribute.get_replica_context()
        return context.merge_call(merge, args=(tf.constant(RANK + 1.0),))

    assert call(function) == total / SIZE
    assert variable.numpy() == 1 + total + total / SIZE


def test_values_from_a_function():
    def value(context):
        assert context.num_replicas_in_sync == SIZE
        return tf.constant(context.replica_id_in_sync_group + 1)

    values = STRATEGY.experimental_distribute_values_from_function(value)
    assert STRATEGY.run(lambda v: v * 2, args=(values,)) == 2 * (RANK + 1)
    assert STRATEGY.reduce("SUM", values, axis=None) == total


def test_who_am_i():
    """What scripts for several workers ask before they write."""
    resolver = STRATEGY.cluster_resolver
    assert (resolver.task_type, resolver.task_id) == ("worker", RANK)
    assert len(resolver.cluster_spec().as_dict()["worker"]) == SIZE
    assert STRATEGY.extended.should_checkpoint == (RANK == 0)
    assert STRATEGY.extended.should_save_summary == (RANK == 0)
    assert len(STRATEGY.extended.worker_devices) == 1


def test_ranks_that_do_different_things_are_told():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)rank 0.*\[1\].*rank 1.*\[2\]"):
        STRATEGY.reduce("SUM", tf.ones([RANK + 1]), axis=None)
    assert everywhere(RANK) == list(range(SIZE))


def test_copies_are_the_same_one():
    assert copy.deepcopy(STRATEGY) is STRATEGY and copy.copy(STRATEGY) is STRATEGY
    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(STRATEGY)
