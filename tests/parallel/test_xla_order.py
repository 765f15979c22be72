"""Compiled functions: no call is merged, dropped, repeated, or matched with the wrong one."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from xla_cases import RANK, SIZE, TOTAL, collectives, graph, jit, mixed

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

RUNS = pytest.mark.parametrize("run", [jit, mixed])
PASSES = 12
EXPECTED = [i * sum(10.0**rank for rank in range(SIZE)) for i in range(PASSES)]


def total(x, **arguments):
    return hvd.allreduce(x, op=hvd.Sum, **arguments)


def counted(run, function, *arguments):
    """The results, and the number of collectives that ran."""
    before = collectives()
    results = run(function, *arguments)
    return results, collectives() - before


@RUNS
def test_equal_calls_are_not_merged(run):
    (first, second), count = counted(run, lambda x: (total(x), total(x)), tf.constant(RANK + 1.0))
    assert (float(first), float(second), count) == (TOTAL, TOTAL, 2)


@RUNS
def test_results_that_nothing_uses_are_not_dropped(run):
    def function(x):
        total(x)
        hvd.broadcast(x, 0)
        hvd.allgather(x)
        hvd.reducescatter(tf.fill([SIZE], x))
        hvd.alltoall(tf.fill([SIZE], x))
        hvd.barrier()
        return x

    result, count = counted(run, function, tf.constant(RANK + 1.0))
    assert (float(result), count) == (RANK + 1.0, 6)


@RUNS
def test_calls_of_constants_are_made_in_every_run(run):
    assert counted(run, lambda: total(tf.constant(2.0)))[1] == 1


@RUNS
def test_one_name_several_times_keeps_its_order(run):
    inner = tf.function(lambda x: total(x))

    def outer(x):
        # The first is ready last.
        product = tf.linalg.matmul(tf.fill([300, 300], x), tf.ones([300, 300]))
        slow = x + 0.0 * tf.reduce_sum(product)
        return [inner(slow), inner(100 * x), inner(10000 * x)]

    for _ in range(5):
        results = run(outer, tf.constant(RANK + 1.0))
        assert [float(x) for x in results] == [TOTAL, 100 * TOTAL, 10000 * TOTAL]


def test_ranks_that_make_their_calls_in_different_orders():
    for elements in (4, 5000):  # XLA runs small computations one operation after another

        def function(x):
            order = range(10) if RANK == 0 else reversed(range(10))
            results = {i: total(x * (i + 1.0), name=f"order.{i}") for i in order}
            return tf.add_n([results[i] * 2.0**i for i in range(10)])

        compiled = tf.function(function, jit_compile=True, autograph=False)
        for _ in range(10):
            result = compiled(tf.fill([elements], RANK + 1.0))
            np.testing.assert_array_equal(result, sum((i + 1) * 2**i for i in range(10)) * TOTAL)


def test_barrier():
    # Each rank comes to it in its own way.
    def function():
        hvd.barrier("one")
        hvd.barrier("two")

    for _ in range(3):
        assert counted(jit if RANK == 0 else graph, function)[1] == 2


# Loops and branches.


def passes(body):
    def step(i, results):
        return i + 1, results.write(i, body(tf.cast(i, tf.float32) * 10.0**RANK))

    results = tf.TensorArray(tf.float32, PASSES)
    return tf.while_loop(lambda i, _: i < PASSES, step, [0, results])[1].stack()


@RUNS
def test_while_loop(run):
    for _ in range(3):
        results, count = counted(run, lambda: passes(total))
        np.testing.assert_array_equal(results, EXPECTED)
        assert count == PASSES


@RUNS
def test_results_in_a_loop_that_nothing_uses(run):
    def body(x):
        total(x)
        return x

    assert counted(run, lambda: passes(body))[1] == PASSES


@RUNS
def test_two_calls_in_each_pass(run):
    results = run(lambda: passes(lambda x: total(x) - total(x / 2)))
    np.testing.assert_array_equal(results, np.array(EXPECTED) / 2)


@RUNS
def test_nested_loops(run):
    def outer(x):
        return tf.while_loop(
            lambda j, _: j < 5, lambda j, y: (j + 1, y + total(x) * (j + 1.0)), [0.0, 0.0]
        )[1]

    results, count = counted(run, lambda: passes(outer))
    np.testing.assert_array_equal(results, np.array(EXPECTED) * 15)
    assert count == 5 * PASSES


def test_function_in_a_loop():
    inner = tf.function(lambda x: total(x))
    inner(tf.constant(1.0))  # traced before, outside of the loop
    np.testing.assert_array_equal(jit(lambda: passes(inner)), EXPECTED)


def test_map_fn():
    x = tf.range(8.0)
    result = jit(lambda x: tf.map_fn(total, x), x * (RANK + 1))
    np.testing.assert_array_equal(result, x * TOTAL)


@RUNS
def test_branches(run):
    def function(flag, x):
        return tf.cond(flag, lambda: total(x), lambda: hvd.allreduce(x, op=hvd.Max))

    x = tf.constant(RANK + 1.0)
    compiled = tf.function(function, jit_compile=run is jit or RANK == 0)
    for _ in range(2):
        assert float(compiled(tf.constant(True), x)) == TOTAL
        assert float(compiled(tf.constant(False), x)) == SIZE


def test_gradient_of_a_loop():
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, y: (i + 1, hvd.allreduce(y * y, op=hvd.Average)),
                [0, x],
                maximum_iterations=3,
            )
        return tape.gradient(y, x)

    x = tf.constant([1.5]) + RANK
    mean = np.mean([(1.5 + rank) ** 2 for rank in range(SIZE)])
    np.testing.assert_allclose(jit(function, x), 8 * mean**3 * x, rtol=1e-5)


@RUNS
def test_recompute_grad_runs_a_collective_again(run):
    layer = tf.recompute_grad(lambda x: hvd.allreduce(tf.square(x), op=hvd.Average))

    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(layer(x))
        return y, tape.gradient(y, x)

    x = tf.constant([2.0]) + RANK
    mean = np.mean([(2.0 + rank) ** 2 for rank in range(SIZE)])
    for _ in range(3):
        y, grad = run(function, x)
        np.testing.assert_allclose(y, [mean**2], rtol=1e-6)
        np.testing.assert_allclose(grad, 2 * mean * 2 * x, rtol=1e-6)


def test_one_name_in_a_loop_and_outside_of_it_is_refused():
    inner = tf.function(lambda x: total(x))
    with pytest.raises(tf.errors.UnimplementedError, match="(?s)allreduce.*in several places"):
        jit(lambda: passes(inner) + inner(tf.constant(1.0)))
    np.testing.assert_array_equal(graph(lambda: passes(inner) + inner(1.0)), np.add(EXPECTED, SIZE))


# Compiled functions among others.


def test_compiled_function_in_a_function_that_is_not():
    inner = tf.function(lambda x: total(x), jit_compile=True)

    def function(x):
        return passes(inner), inner(x) - inner(2 * x), total(x)

    results, difference, plain = graph(function, tf.constant(RANK + 1.0))
    np.testing.assert_array_equal(results, EXPECTED)
    assert (float(difference), float(plain)) == (-TOTAL, TOTAL)


def test_several_threads():
    compiled = [
        tf.function(
            lambda x, i=i: total(x * (i + 1.0), name=f"thread.{i}"), jit_compile=True
        ).get_concrete_function(tf.TensorSpec([100]))
        for i in range(4)
    ]
    shared = tf.function(lambda x: total(x, name="shared"), jit_compile=True)
    seen = {}

    def work(i):
        own = [compiled[i](tf.fill([100], RANK + k + 1.0)) for k in range(20)]
        # All threads call this one: which calls meet is not said, but none may be lost or mixed up.
        seen[i] = (own, [shared(tf.constant(RANK + 1.0)) for _ in range(20)])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (own, together) in seen.items():
        for k, result in enumerate(own):
            np.testing.assert_array_equal(result, (i + 1) * (TOTAL + k * SIZE))
        assert [float(x) for x in together] == [TOTAL] * 20
