"""Variables made in the scope of hvd.Strategy: creation, assignment, reading."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import everywhere

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STRATEGY = hvd.Strategy()
Aggregation, Synchronization = tf.VariableAggregation, tf.VariableSynchronization
total = sum(range(1, SIZE + 1))

pytestmark = pytest.mark.ranks(2)


@pytest.fixture(params=["eager", "graph"])
def call(request):
    def run(function):
        def body():
            return STRATEGY.run(function)

        return (body if request.param == "eager" else tf.function(body))()

    return run


def variable(aggregation=Aggregation.NONE, synchronization=Synchronization.AUTO, value=0.0):
    with STRATEGY.scope():
        return tf.Variable(value, aggregation=aggregation, synchronization=synchronization)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "bool"]
)
def test_the_first_ranks_value(dtype):
    with STRATEGY.scope():
        made = tf.Variable(tf.cast([RANK + 1, 2 * RANK], dtype))
        from_function = tf.Variable(lambda: tf.cast(RANK + 1, dtype))
    np.testing.assert_array_equal(tf.cast(made, tf.int32), [1, 0])
    assert tf.cast(from_function, tf.int32) == 1
    assert STRATEGY.extended.variable_created_in_scope(made)
    assert not STRATEGY.extended.variable_created_in_scope(tf.Variable(1.0))


def test_complex_numbers_and_text():
    with STRATEGY.scope():
        number = tf.Variable(tf.complex(RANK + 1.0, 2.0))
        text = tf.Variable("text")
    assert number.numpy() == 1 + 2j and text.numpy() == b"text"


def test_variables_made_in_a_function():
    made = []

    @tf.function
    def function():
        if not made:
            made.append(tf.Variable(lambda: tf.constant(RANK + 5.0)))
        return made[0].assign_add(1.0)

    with STRATEGY.scope():
        function()
    assert made[0].numpy() == 6.0


def test_keras_models():
    """Weights and slots; a model that is built late, and one that is read."""
    keras.utils.set_random_seed(RANK)
    with STRATEGY.scope():
        model = keras.Sequential([keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam(0.5 + RANK)
        model.build((None, 3))
        optimizer.build(model.trainable_variables)
    values = everywhere([np.asarray(v) for v in [*model.weights, *optimizer.variables]])
    for a, b in zip(values[0], values[RANK], strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(optimizer.learning_rate) == 0.5 and int(optimizer.iterations) == 0


# What becomes of rank + 1.
AGGREGATED = {"SUM": total, "MEAN": total / SIZE, "ONLY_FIRST_REPLICA": 1, "NONE": RANK + 1}


@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_assigning_in_a_replica(call, aggregation):
    expected = AGGREGATED[aggregation]
    aggregation = getattr(Aggregation, aggregation)
    var = variable(aggregation, value=10.0)
    mine = RANK + 1.0
    call(lambda: var.assign(tf.constant(mine)))
    assert var.numpy() == expected
    call(lambda: var.assign_add(tf.constant(mine)))
    assert var.numpy() == 2 * expected
    call(lambda: var.assign_sub(tf.constant(mine)))
    assert var.numpy() == expected
    call(lambda: var.assign(3.0))  # a number of the program
    assert var.numpy() == 3.0


def test_assigning_sparse_slices(call):
    var = variable(Aggregation.SUM, value=tf.zeros([SIZE, 1]))
    slices = tf.IndexedSlices(tf.fill([1, 1], RANK + 1.0), tf.constant([RANK]))

    def add():
        var.scatter_add(slices)

    call(add)
    np.testing.assert_array_equal(var.numpy()[:, 0], np.arange(1.0, SIZE + 1))


def test_assigning_outside():
    var = variable(Aggregation.SUM)
    var.assign(2.0)  # the same on all ranks, so nothing is added up
    assert var.numpy() == 2.0
    with STRATEGY.scope():
        var.assign_add(1.0)
    assert everywhere(float(var.numpy())) == [3.0] * SIZE
    assert float(var + 1) == 4.0 and float(tf.convert_to_tensor(var)) == 3.0


def test_what_cannot_be_aggregated():
    var = variable(Aggregation.MEAN)
    integer = variable(Aggregation.SUM, value=1)
    STRATEGY.run(lambda: integer.assign(tf.constant(RANK + 1)))
    assert integer.numpy() == total
    with pytest.raises(ValueError, match="MEAN"):
        variable(Aggregation.MEAN, value=1)
    with pytest.raises(ValueError, match="NONE"):
        variable(Aggregation.SUM, Synchronization.NONE)
    first = variable(Aggregation.ONLY_FIRST_REPLICA, value=tf.zeros([2, 1]))
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="cannot be broadcast"):
        STRATEGY.run(lambda: first.scatter_add(slices))
    assert var.numpy() == 0.0


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_synchronized_on_read(call, aggregation):
    expected = AGGREGATED[aggregation]
    aggregation = getattr(Aggregation, aggregation)
    var = variable(aggregation, Synchronization.ON_READ)

    def update():
        var.assign_add(tf.constant(RANK + 1.0))
        return var.read_value()

    assert call(update) == RANK + 1  # in a replica it is the rank's own
    assert var.numpy() == expected and float(var.value()) == expected
    assert float(STRATEGY.extended.read_var(var)) == expected
    var.assign(4.0)
    assert var.numpy() == 4.0


def test_metrics(call):
    with STRATEGY.scope():
        mean = keras.metrics.Mean()
    call(lambda: mean.update_state(tf.fill([RANK + 1], float(RANK))))
    expected = sum(rank * (rank + 1) for rank in range(SIZE)) / total
    assert everywhere(float(mean.result())) == [pytest.approx(expected)] * SIZE
    mean.reset_state()
    assert mean.result() == 0


def test_moving_statistics_in_a_loop_of_ones_own(call):
    """A compiled function is traced once and runs without Strategy.run's code."""
    with STRATEGY.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    inputs = tf.fill([2, 1], RANK + 1.0)
    step = tf.function(lambda: layer(inputs, training=True))
    for _ in range(2):
        call(step)
    mean = total / SIZE
    np.testing.assert_allclose(layer.moving_mean.numpy(), [mean / 2 + mean / 4], rtol=1e-6)
    assert len(set(everywhere(layer.moving_mean.numpy().tobytes()))) == 1


def test_seeds(call):
    with STRATEGY.scope():
        generator = keras.random.SeedGenerator(7)
    before = generator.state.value.numpy().tolist()
    drawn = call(lambda: keras.random.uniform([3], seed=generator))
    again = call(lambda: keras.random.uniform([3], seed=generator))
    assert before == [7, 0] and generator.state.value.numpy().tolist() == [7, 2]
    values = [tuple(v) for v in everywhere(drawn.numpy()) + everywhere(again.numpy())]
    assert len(set(values)) == 2 * SIZE


def test_states_of_recurrent_layers_are_a_ranks_own(call):
    with STRATEGY.scope():
        layer = keras.layers.SimpleRNN(1, stateful=True)
        layer.build((1, 1, 1))
    call(lambda: layer(tf.fill([1, 1, 1], (RANK + 1) / 8)))
    states = everywhere(float(layer.states[0].numpy()[0, 0]))
    assert len(set(states)) == SIZE and 0.0 not in states
