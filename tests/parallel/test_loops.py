"""Collectives in loops: the i-th pass on one rank meets the i-th pass on the others."""

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
PASSES = 40


def uneven_work(i):
    """Takes a time that depends on rank and pass, so that passes overtake each other."""
    n = tf.where((i + RANK) % 3 == 0, 200, 2)
    x = tf.random.stateless_uniform([n, n], [0, 0])
    return tf.reduce_sum(tf.linalg.matmul(x, x)) * 0.0


def passes(collective, parallel_iterations=10):
    def body(i, results):
        x = tf.cast(i, tf.float32) * 10.0**RANK + uneven_work(i)
        return i + 1, results.write(i, collective(x))

    results = tf.TensorArray(tf.float32, PASSES)
    _, results = tf.while_loop(
        lambda i, _: i < PASSES,
        body,
        [0, results],
        parallel_iterations=parallel_iterations,
    )
    return results.stack()


EXPECTED = [i * sum(10.0**rank for rank in range(SIZE)) for i in range(PASSES)]


def test_while_loop_without_dependencies_between_passes():
    # A pass that met another one would give, say, 3 + 70 instead of 3 + 30.
    function = tf.function(lambda: passes(lambda x: hvd.allreduce(x, op=hvd.Sum)))
    for _ in range(5):
        np.testing.assert_array_equal(function(), EXPECTED)


def test_two_collectives_in_each_pass():
    @tf.function
    def function():
        return passes(lambda x: hvd.allreduce(x, op=hvd.Sum) - hvd.allreduce(x / 2, op=hvd.Sum))

    for _ in range(5):
        np.testing.assert_array_equal(function(), np.array(EXPECTED) / 2)


def test_function_in_a_while_loop():
    inner = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    inner(tf.constant(1.0))  # traced before, outside of the loop
    function = tf.function(lambda: passes(inner))
    for _ in range(5):
        np.testing.assert_array_equal(function(), EXPECTED)


def test_function_that_is_not_inlined_in_a_while_loop():
    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x):
        return hvd.allreduce(x, op=hvd.Sum)

    inner(tf.constant(1.0))
    function = tf.function(lambda: passes(inner))
    for _ in range(5):
        np.testing.assert_array_equal(function(), EXPECTED)


def nested_passes():
    def outer(i, results):
        def inner(j, total):
            x = tf.cast(i * 5 + j, tf.float32) * 10.0**RANK + uneven_work(i + j)
            return j + 1, total + hvd.allreduce(x, op=hvd.Sum) * tf.cast(j + 1, tf.float32)

        _, total = tf.while_loop(lambda j, _: j < 5, inner, [0, 0.0])
        return i + 1, results.write(i, total)

    results = tf.TensorArray(tf.float32, 20)
    _, results = tf.while_loop(lambda i, _: i < 20, outer, [0, results], parallel_iterations=10)
    return results.stack()


NESTED = [
    sum((i * 5 + j) * (j + 1) for j in range(5)) * sum(10.0**rank for rank in range(SIZE))
    for i in range(20)
]


def test_nested_while_loops():
    function = tf.function(nested_passes)
    for _ in range(5):
        np.testing.assert_array_equal(function(), NESTED)


def test_tf1_nested_while_loops_are_refused():
    # Their passes were seen to meet wrong ones: 1515 and 1840 instead of 1265 and 2090.
    with tf.Graph().as_default(), pytest.raises(NotImplementedError, match="tf.function"):
        nested_passes()


def test_tf1_while_loop():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        results = passes(lambda x: hvd.allreduce(x, op=hvd.Sum))
        for _ in range(5):
            np.testing.assert_array_equal(session.run(results), EXPECTED)


def test_more_passes_than_names_are_kept_for():
    @tf.function
    def function():
        return tf.while_loop(
            lambda i, _: i < 1000,
            lambda i, total: (
                i + 1,
                total + hvd.allreduce(tf.cast(i, tf.float64) * (RANK + 1), op=hvd.Sum),
            ),
            [0, tf.constant(0.0, tf.float64)],
        )[1]

    assert float(function()) == 999 * 1000 / 2 * sum(range(1, SIZE + 1))


def test_map_fn_in_parallel():
    @tf.function
    def function(x):
        return tf.map_fn(lambda v: hvd.allreduce(v, op=hvd.Sum), x, parallel_iterations=10)

    x = tf.range(30, dtype=tf.float32)
    np.testing.assert_array_equal(function(x * (RANK + 1)), x * sum(range(1, SIZE + 1)))


def test_gradient_of_a_loop():
    @tf.function
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, y: (i + 1, hvd.allreduce(y * y, op=hvd.Average)),
                [0, x],
            )
        return tape.gradient(y, x)

    # y = m**4 with m the mean of the ranks' x**2, so that the sum of y over ranks has the
    # derivative SIZE * 4 m**3 * 2 x / SIZE.
    x = tf.constant([1.5]) + RANK
    m = np.mean([(1.5 + rank) ** 2 for rank in range(SIZE)])
    for _ in range(3):
        np.testing.assert_allclose(function(x), 8 * m**3 * x, rtol=1e-5)


@pytest.mark.parametrize("graph", [False, True])
def test_recompute_grad_runs_a_collective_again(graph):
    # The forward pass runs twice: once, and once more while the gradient is computed.
    layer = tf.recompute_grad(lambda x: hvd.allreduce(tf.square(x), op=hvd.Average))

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(layer(x))
        return y, tape.gradient(y, x)

    run = tf.function(run) if graph else run
    x = tf.constant([2.0]) + RANK
    mean = np.mean([(2.0 + rank) ** 2 for rank in range(SIZE)])
    for _ in range(3):
        y, grad = run(x)
        np.testing.assert_allclose(y, [mean**2], rtol=1e-6)
        # d/dx of the sum over ranks of mean**2: SIZE * 2 * mean * 2 x / SIZE.
        np.testing.assert_allclose(grad, 2 * mean * 2 * x, rtol=1e-6)


def test_function_that_reads_a_variable_called_twice():
    """TensorFlow sees no side effect that orders the two calls, and would run both at once."""
    scale = tf.Variable(1.0)

    @tf.function(autograph=False)
    def total(x):
        return hvd.allreduce(x * scale, op=hvd.Sum)

    def late(x):
        work = tf.random.stateless_uniform([300, 300], [1, 2])
        for _ in range(8):
            work = tf.matmul(work, work) * 1e-3
        return x + 0.0 * tf.clip_by_value(tf.reduce_sum(work), 0.0, 1.0)

    @tf.function(autograph=False)
    def both(x, y):
        x, y = (late(x), y) if RANK == 0 else (x, late(y))
        return total(x), total(y)

    for step in range(20):
        first, second = both(tf.constant(step + 1.0), tf.constant(100.0 * (step + 1)))
        assert (float(first), float(second)) == (SIZE * (step + 1.0), SIZE * 100.0 * (step + 1))
