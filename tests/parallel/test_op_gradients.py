"""Gradients of the collectives: the derivative of the sum of all ranks' losses."""

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ALL = sum(range(1, SIZE + 1))


def gradient(function, x, upstream=None, graph=False):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=upstream)

    return (tf.function(run) if graph else run)(x)


def numeric_gradient(function, x, weights, step=1e-4):
    """Central differences of the sum over ranks of sum(weights * y**2), for this rank's x."""

    def total_loss(x):
        loss = tf.reduce_sum(weights * function(x) ** 2)
        return float(hvd.allreduce(loss, op=hvd.Sum, name="total_loss"))

    result = np.zeros(x.shape)
    elements = [tuple(hvd.broadcast_object(i)) for i in np.ndindex(*x.shape)]
    for rank in range(SIZE):
        for i in elements:
            shift = np.zeros(x.shape)
            shift[i] = step if rank == RANK else 0.0
            slope = (total_loss(x + shift) - total_loss(x - shift)) / (2 * step)
            if rank == RANK:
                result[i] = slope
    return result


def check_numerically(function, x, rows=None):
    rng = np.random.default_rng(RANK)
    weights = tf.constant(rng.uniform(1, 2, function(x).shape))

    def loss(x):
        return tf.reduce_sum(weights * function(x) ** 2)

    expected = numeric_gradient(function, x, weights)
    for graph in (False, True):
        np.testing.assert_allclose(gradient(loss, x, graph=graph), expected, rtol=1e-6)


# Unit upstream gradients: the documented values.


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: hvd.allreduce(x, op=hvd.Sum), SIZE),
        (lambda x: hvd.allreduce(x, op=hvd.Average), 1),
        (lambda x: hvd.allreduce(x, op=hvd.Max), SIZE if RANK == SIZE - 1 else 0),
        (lambda x: hvd.allreduce(x, op=hvd.Min), SIZE if RANK == 0 else 0),
        (hvd.allgather, SIZE),
        (lambda x: hvd.broadcast(x, SIZE - 1), SIZE if RANK == SIZE - 1 else 0),
        (
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
            SIZE * 1.5,
        ),
    ],
    ids=["sum", "average", "max", "min", "allgather", "broadcast", "scaled"],
)
def test_unit_upstream(function, expected, graph):
    x = tf.constant([1.0, 2.0, 3.0]) * (RANK + 1)
    np.testing.assert_allclose(gradient(function, x, graph=graph), [expected] * 3, rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_upstream_gradients_of_the_ranks_are_added(graph):
    x = tf.constant([1.0, 2.0])
    upstream = tf.constant([1.0, 10.0]) * (RANK + 1)
    total = np.array([1.0, 10.0]) * ALL
    for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / SIZE)):
        got = gradient(lambda x, op=op: hvd.allreduce(x, op=op), x, upstream, graph)
        np.testing.assert_allclose(got, total * factor, rtol=1e-6)
    got = gradient(lambda x: hvd.broadcast(x, 0), x, upstream, graph)
    np.testing.assert_allclose(got, total if RANK == 0 else [0, 0], rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_allgather_of_uneven_parts(graph):
    rows = [rank + 1 for rank in range(SIZE)]
    x = tf.ones([RANK + 1, 2])
    # The upstream gradient of row i is 10 * i on rank 0, 100 * i on rank 1 ...
    upstream = tf.range(sum(rows), dtype=tf.float32)[:, None] * tf.ones([1, 2]) * 10.0 ** (RANK + 1)
    got = gradient(hvd.allgather, x, upstream, graph)
    mine = np.arange(sum(rows))[sum(rows[:RANK]) : sum(rows[: RANK + 1])]
    scale = sum(10.0 ** (rank + 1) for rank in range(SIZE))
    np.testing.assert_allclose(got, np.stack([mine * scale] * 2, axis=1), rtol=1e-6)


def test_ties_share_the_gradient_of_min_and_max():
    x = tf.constant([5.0])
    for op in (hvd.Min, hvd.Max):
        got = gradient(lambda x, op=op: hvd.allreduce(x, op=op), x)
        np.testing.assert_allclose(got, [1.0], rtol=1e-6)  # SIZE, shared by SIZE ranks


# Against finite differences.


@pytest.mark.parametrize(
    "function",
    [
        lambda x: hvd.allreduce(x, op=hvd.Sum),
        lambda x: hvd.allreduce(x, op=hvd.Average),
        lambda x: hvd.allreduce(x, op=hvd.Max),
        lambda x: hvd.allreduce(x, op=hvd.Min),
        lambda x: hvd.allreduce(x, op=hvd.Average, prescale_factor=0.7, postscale_factor=1.3),
        lambda x: tf.concat(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum), 0),
        lambda x: hvd.broadcast(x, SIZE - 1),
        hvd.allgather,
    ],
    ids=["sum", "average", "max", "min", "scaled", "grouped", "broadcast", "allgather"],
)
def test_against_finite_differences(function):
    x = tf.constant(np.random.default_rng(100 + RANK).uniform(1, 2, (2, 2)))
    check_numerically(function, x)


def test_uneven_allgather_against_finite_differences():
    # Finite differences need as many elements on each rank, so pad here and cut inside.
    x = tf.constant(np.random.default_rng(200 + RANK).uniform(1, 2, (SIZE, 2)))
    check_numerically(lambda x: hvd.allgather(x[: RANK + 1]), x)


def test_a_chain_of_collectives_against_finite_differences():
    x = tf.constant(np.random.default_rng(300 + RANK).uniform(1, 2, (2,)))
    check_numerically(
        lambda x: hvd.allreduce(tf.exp(hvd.broadcast(x, 0) * hvd.allreduce(x) / 4)) * x, x
    )


def test_second_derivative():
    x = tf.constant([2.0, 3.0]) + RANK
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = hvd.allreduce(x**3, op=hvd.Sum)
        first = inner.gradient(y, x)
    np.testing.assert_allclose(first, SIZE * 3 * x**2, rtol=1e-6)
    np.testing.assert_allclose(outer.gradient(first, x), SIZE * 6 * x, rtol=1e-6)


def test_gradient_through_gather_of_the_result():
    # tf.gather gives its input a tf.IndexedSlices as upstream gradient.
    x = tf.constant([[1.0], [2.0], [3.0]])
    got = gradient(lambda x: tf.gather(hvd.allreduce(x, op=hvd.Sum), [2, 0, 2]), x)
    np.testing.assert_allclose(got, [[SIZE], [0], [2 * SIZE]], rtol=1e-6)


def test_tf1_gradients():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant([1.0, 2.0]) * (RANK + 1)
        ys = [
            hvd.allreduce(x, op=hvd.Sum),
            hvd.broadcast(x, SIZE - 1),
            hvd.allgather(x),
            hvd.allreduce(x, op=hvd.Max),
        ]
        grads = [tf.gradients(y, x)[0] for y in ys]
        last = SIZE if RANK == SIZE - 1 else 0
        np.testing.assert_allclose(
            session.run(grads), [[SIZE] * 2, [last] * 2, [SIZE] * 2, [last] * 2], rtol=1e-6
        )


def test_unused_outputs_of_a_group():
    x = tf.constant([1.0])
    got = gradient(lambda x: hvd.grouped_allreduce([x, 5 * x], op=hvd.Sum)[1], x)
    np.testing.assert_allclose(got, [5 * SIZE], rtol=1e-6)


def test_compression_is_differentiable():
    x = tf.constant([1.0, 2.0])
    got = gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16), x)
    np.testing.assert_allclose(got, [SIZE, SIZE], rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_product_has_no_gradient(graph):
    expected = Exception if graph else LookupError  # AutoGraph makes an error of its own of it
    with pytest.raises(expected, match="hvd.Product.*tf.reduce_prod of hvd.allgather"):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Product), tf.constant([1.0]), graph=graph)


def test_scaled_maximum_has_no_gradient():
    with pytest.raises(LookupError, match="multiply the tensor instead"):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Max, prescale_factor=2.0), tf.constant([1.0]))
