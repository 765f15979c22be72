"""The collectives in functions that XLA compiles: the same results, bit for bit, as without."""

import numpy as np
import pytest
import tensorflow as tf
from xla_cases import (
    FLOATS,
    INTEGERS,
    RANK,
    SIZE,
    TOTAL,
    as_bytes,
    assert_as_in_a_graph,
    graph,
    jit,
    mixed,
    values,
)

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

NUMBERS = INTEGERS + FLOATS


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product])
def test_allreduce(dtype, op):
    assert_as_in_a_graph(lambda x: hvd.allreduce(x, op=op), values(dtype))


@pytest.mark.parametrize("run", [jit, mixed])
def test_allreduce_in_numbers(run):
    result = run(lambda x: hvd.allreduce(x, op=hvd.Sum), values())
    np.testing.assert_array_equal(result, sum(values(rank=rank).numpy() for rank in range(SIZE)))


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_allreduce_of_bool(op):
    assert_as_in_a_graph(lambda x: hvd.allreduce(x, op=op), values("bool"))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_factors_and_rounding(dtype, op):
    x = tf.cast(tf.random.stateless_normal([1000], [RANK, 1]), dtype)
    assert_as_in_a_graph(
        lambda x: hvd.allreduce(x, op=op, prescale_factor=1 / 3, postscale_factor=-7e-3), x
    )


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression(compression):
    x = tf.random.stateless_normal([1000], [RANK, 1])
    assert_as_in_a_graph(lambda x: hvd.allreduce(x, compression=compression), x)


def test_adasum():
    x = tf.random.stateless_normal([1000], [RANK, 1], dtype=tf.float64)
    assert_as_in_a_graph(lambda x: hvd.allreduce(x, op=hvd.Adasum), x)


def test_grouped_allreduce_of_several_types_and_shapes():
    assert_as_in_a_graph(
        lambda *xs: hvd.grouped_allreduce(xs, op=hvd.Sum),
        values(),
        values("int32"),
        values("float16")[:3],
        tf.constant(RANK + 1.0),
        tf.zeros([0, 3]),
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1, 1, 1, 1)])
def test_odd_shapes(shape):
    x = tf.fill(shape, RANK + 1.0)
    assert_as_in_a_graph(lambda x: (hvd.allreduce(x, op=hvd.Sum), hvd.broadcast(x, 1)), x)


@pytest.mark.parametrize("dtype", ["bool", *NUMBERS])
@pytest.mark.parametrize("root", [0, 2])
def test_broadcast(dtype, root):
    assert_as_in_a_graph(lambda x: hvd.broadcast(x, root), values(dtype))


@pytest.mark.parametrize("dtype", ["bool", *NUMBERS])
def test_allgather(dtype):
    assert_as_in_a_graph(lambda x: hvd.grouped_allgather([x, x[0], x[:0]]), values(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("rows", [6, 5, 2, 0])  # equal shares, and unequal ones
def test_reducescatter(dtype, rows):
    x = values(dtype)[:rows]
    assert_as_in_a_graph(lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0), x)


@pytest.mark.parametrize("dtype", ["bool", *NUMBERS])
def test_alltoall(dtype):
    assert_as_in_a_graph(lambda x: (hvd.alltoall(x), hvd.alltoall(x, [2, 2, 2])), values(dtype))


def test_alltoall_with_splits_that_are_no_constants():
    assert_as_in_a_graph(
        lambda x, splits: hvd.alltoall(x, splits), values(), tf.constant([2, 2, 2])
    )


@pytest.mark.parametrize("name", ["a b:c/d", 'quote " backslash \\ {x = 1 : i64}', "ünï\n\t"])
def test_names(name):
    result = mixed(
        lambda x: hvd.allreduce(x, op=hvd.Sum, name=name, ignore_name_scope=True),
        tf.constant(RANK + 1.0),
    )
    assert float(result) == TOTAL


def test_process_sets():
    pair = hvd.add_process_set([0, 2])
    try:
        if RANK != 1:
            arguments = {"process_set": pair}
            assert_as_in_a_graph(
                lambda x: (
                    hvd.allreduce(x, op=hvd.Sum, **arguments),
                    hvd.allgather(x, **arguments),
                    hvd.broadcast(x, 2, **arguments),
                    hvd.reducescatter(x[:5], op=hvd.Sum, **arguments),
                    hvd.alltoall(x, **arguments),
                    hvd.size_op(pair.process_set_id),
                    hvd.process_set_included_op(pair.process_set_id),
                ),
                values(),
            )
    finally:
        hvd.remove_process_set(pair)


def test_topology_is_looked_up_when_the_function_runs():
    compiled = tf.function(
        lambda: (hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()),
        jit_compile=True,
    )
    late = tf.function(lambda: (hvd.size_op(9), hvd.process_set_included_op(9)), jit_compile=True)
    here = [RANK, SIZE, RANK, SIZE]
    assert [int(x) for x in compiled()] == here
    assert [int(x) for x in late()] == [-3, -3]
    hvd.barrier()
    hvd.shutdown()
    try:
        assert [int(x) for x in compiled()] == [-1, -1, -1, -1]
    finally:
        hvd.init()
    assert [int(x) for x in compiled()] == here


def test_a_compiled_function_outlives_the_world():
    compiled = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), jit_compile=True)
    assert float(compiled(tf.constant(RANK + 1.0))) == TOTAL
    hvd.shutdown()
    try:
        with pytest.raises(tf.errors.FailedPreconditionError, match="hvd.shutdown"):
            compiled(tf.constant(1.0))
    finally:
        hvd.init()
    assert float(compiled(tf.constant(RANK + 1.0))) == TOTAL


def test_indexed_slices_of_equally_many_rows():
    def function(x):
        slices = tf.IndexedSlices(x, tf.constant([0, 3, RANK, 3, 0, 1]), tf.constant([8, 2]))
        result = hvd.allreduce(slices)
        return result.values, result.indices, tf.shape(result.values)

    assert_as_in_a_graph(function, values())


def test_memory_of_inputs_is_left_alone():
    variable = tf.Variable(values())

    @tf.function(jit_compile=True)
    def function(x):
        first = hvd.allreduce(x, op=hvd.Sum)
        second = hvd.broadcast(variable, 0)
        variable.assign_add(second)
        return first - x, second, x

    x = values()
    first, second, same = function(x)
    total = sum(values(rank=rank).numpy() for rank in range(SIZE))
    np.testing.assert_array_equal(first, total - values().numpy())
    np.testing.assert_array_equal(second, values(rank=0))
    np.testing.assert_array_equal(same, values())
    np.testing.assert_array_equal(x, values())
    np.testing.assert_array_equal(variable, values().numpy() + values(rank=0).numpy())


def test_layouts_that_xla_would_choose():
    # XLA likes the operands and results of a matrix product column by column.
    def function(x, y):
        product = tf.matmul(x, y, transpose_a=True)
        return tf.matmul(hvd.allreduce(tf.transpose(product), op=hvd.Sum), x, transpose_b=True)

    x = tf.random.stateless_uniform([70, 50], [RANK, 1], maxval=8, dtype=tf.int32)
    y = tf.random.stateless_uniform([70, 50], [RANK, 2], maxval=8, dtype=tf.int32)
    x, y = tf.cast(x, tf.float32), tf.cast(y, tf.float32)  # so that products are exact
    assert_as_in_a_graph(function, x, y)


# Gradients.


def gradient_of(function):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return run


@pytest.mark.parametrize(
    "function",
    [
        lambda x: hvd.allreduce(x * x, op=hvd.Sum, prescale_factor=3.0),
        lambda x: hvd.allreduce(x * x, op=hvd.Average),
        lambda x: hvd.allreduce(x * x, op=hvd.Max),
        lambda x: hvd.allgather(x * x) * tf.range(18.0)[:, tf.newaxis],
        lambda x: hvd.broadcast(x * x, 1) * (RANK + 1.0),
        lambda x: hvd.reducescatter(x * x, op=hvd.Average),
        lambda x: hvd.alltoall(x * x) * (RANK + 1.0),
        lambda x: hvd.alltoall(x * x, [2, 2, 2])[0] * (RANK + 1.0),
        lambda x: tf.stack(hvd.grouped_allreduce([x, 2 * x * x], op=hvd.Sum)) * (RANK + 1.0),
    ],
    ids=["sum", "mean", "max", "allgather", "broadcast", "scatter", "alltoall", "splits", "group"],
)
def test_gradients(function):
    x = values()
    expected = as_bytes(graph(gradient_of(function), x))
    assert as_bytes(jit(gradient_of(function), x)) == expected
