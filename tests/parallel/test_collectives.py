"""The collectives, in eager code, in tf.function and in TF1 graphs."""

import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
import hvd_keras.keras
import hvd_keras.tensorflow
import hvd_keras.tensorflow.keras

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def eager(function):
    return function()


def graph(function):
    return tf.function(function)()


def tf1(function):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(function())


MODES = pytest.mark.parametrize("run", [eager, graph, tf1])


def values(rank, dtype="float32"):
    """Different on every rank, and small enough to be exact in every type."""
    return tf.constant(np.arange(6).reshape(2, 3) % 4 + rank + 1, dtype)


def as_numpy(tensor):
    return np.asarray(tensor, "float64")


def over_ranks(function, dtype="float32"):
    return [function(as_numpy(values(rank, dtype))) for rank in range(SIZE)]


@MODES
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_sum(run, dtype):
    result = run(lambda: hvd.allreduce(values(RANK, dtype), op=hvd.Sum))
    assert np.asarray(result).dtype == tf.as_dtype(dtype).as_numpy_dtype
    np.testing.assert_array_equal(as_numpy(result), np.sum(over_ranks(lambda x: x), axis=0))


@MODES
def test_average_is_the_default(run):
    result = run(lambda: hvd.allreduce(values(RANK)))
    np.testing.assert_allclose(as_numpy(result), np.mean(over_ranks(lambda x: x), axis=0), 1e-7)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_average_of_integers_truncates_toward_zero(dtype):
    mine = tf.constant([7, -7, 1, -1, 0], dtype) * (RANK + 1)
    total = np.array([7, -7, 1, -1, 0]) * sum(range(1, SIZE + 1))
    expected = [math.trunc(x / SIZE) for x in total]
    np.testing.assert_array_equal(hvd.allreduce(mine, op=hvd.Average), expected)


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize(
    ("op", "expected"), [(hvd.Min, np.min), (hvd.Max, np.max), (hvd.Product, np.prod)]
)
def test_min_max_product(dtype, op, expected):
    if op == hvd.Product and SIZE > 3:
        pytest.skip("products of more ranks do not fit into 8 bits")
    result = hvd.allreduce(values(RANK, dtype), op=op)
    np.testing.assert_array_equal(as_numpy(result), expected(over_ranks(lambda x: x), axis=0))


@pytest.mark.parametrize(("op", "expected"), [(hvd.Min, all), (hvd.Max, any), (hvd.Product, all)])
def test_bool(op, expected):
    # Element 0 is true everywhere, 1 nowhere, 2 on the last rank only.
    mine = [True, False, RANK == SIZE - 1]
    ranks = [[True, False, rank == SIZE - 1] for rank in range(SIZE)]
    result = hvd.allreduce(mine, op=op)
    assert result.numpy().tolist() == [expected(column) for column in zip(*ranks, strict=True)]


def test_prescale_and_postscale():
    result = hvd.allreduce(values(RANK), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_array_equal(as_numpy(result), 2 * np.sum(over_ranks(lambda x: x), axis=0))


def test_prescale_keeps_float16_from_overflowing():
    result = hvd.allreduce(tf.constant([60000.0], tf.float16), op=hvd.Sum, prescale_factor=1 / SIZE)
    np.testing.assert_allclose(result, [60000.0], rtol=1e-3)


@pytest.mark.parametrize(
    ("compression", "dtype"),
    [(hvd.Compression.fp16, "float16"), (hvd.Compression.bf16, "bfloat16")],
)
def test_compression_rounds_once_and_keeps_the_type(compression, dtype):
    mine = tf.constant([0.1, 0.7], tf.float32) * (RANK + 1)
    result = hvd.allreduce(mine, op=hvd.Sum, compression=compression)
    sent = [
        tf.cast(tf.cast(tf.constant([0.1, 0.7]) * (rank + 1), dtype), tf.float32)
        for rank in range(SIZE)
    ]
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(result, tf.cast(tf.cast(tf.add_n(sent), dtype), tf.float32))
    assert np.any(result.numpy() != np.float32([0.1, 0.7]) * sum(range(1, SIZE + 1)))


def test_compression_leaves_integers_alone():
    result = hvd.allreduce(
        tf.constant([70001]) * (RANK + 1), op=hvd.Sum, compression=hvd.Compression.fp16
    )
    assert result.numpy().tolist() == [70001 * sum(range(1, SIZE + 1))]


def test_average_argument():
    with pytest.warns(DeprecationWarning, match="op=hvd.Average"):
        np.testing.assert_array_equal(hvd.allreduce([2.0], average=True), [2.0])
    with pytest.warns(DeprecationWarning):
        np.testing.assert_array_equal(hvd.allreduce([2.0], average=False), [2.0 * SIZE])
    with pytest.raises(ValueError, match="leave out average"):
        hvd.allreduce([2.0], average=True, op=hvd.Sum)


@MODES
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1, 1, 1, 1)])
def test_odd_shapes(run, shape):
    result = np.asarray(run(lambda: hvd.allreduce(tf.fill(shape, RANK + 1.0), op=hvd.Sum)))
    np.testing.assert_array_equal(result, np.full(shape, sum(range(1, SIZE + 1))))
    result = np.asarray(run(lambda: hvd.broadcast(tf.fill(shape, RANK + 1.0), SIZE - 1)))
    np.testing.assert_array_equal(result, np.full(shape, SIZE))


@MODES
def test_grouped_allreduce_of_several_types(run):
    def function():
        return hvd.grouped_allreduce(
            [values(RANK), values(RANK, "int32"), values(RANK) * 2, tf.constant(RANK + 1.0)],
            op=hvd.Sum,
        )

    total = np.sum(over_ranks(lambda x: x), axis=0)
    results = run(function)
    for result, expected in zip(
        results, [total, total, 2 * total, sum(range(1, SIZE + 1))], strict=True
    ):
        np.testing.assert_array_equal(as_numpy(result), expected)
    assert np.asarray(results[1]).dtype == np.int32


def test_grouped_allreduce_of_nothing():
    assert hvd.grouped_allreduce([]) == []


def slices_of(rank):
    """`rank + 1` slices; row 0 is in all of them."""
    rows = tf.range(rank + 1)
    return tf.IndexedSlices(tf.ones([rank + 1, 2]) * (rank + 1), rows, tf.constant([8, 2]))


def dense_sum_of_slices():
    total = np.zeros((8, 2))
    for rank in range(SIZE):
        total[: rank + 1] += rank + 1
    return total


@MODES
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_indexed_slices(run, op):
    def function():
        result = hvd.allreduce(slices_of(RANK), op=op)
        assert isinstance(result, tf.IndexedSlices)
        return [tf.convert_to_tensor(result), tf.shape(result.values)]

    dense, shape = run(function)
    expected = dense_sum_of_slices() / (SIZE if op == hvd.Average else 1)
    np.testing.assert_allclose(dense, expected, rtol=1e-7)
    assert np.asarray(shape).tolist() == [sum(range(1, SIZE + 1)), 2]


def test_grouped_allreduce_mixes_dense_and_sparse():
    dense, sparse, more = hvd.grouped_allreduce(
        [tf.constant([RANK + 1.0]), slices_of(RANK), slices_of(RANK)], op=hvd.Sum
    )
    np.testing.assert_array_equal(dense, [sum(range(1, SIZE + 1))])
    for slices in (sparse, more):
        np.testing.assert_array_equal(tf.convert_to_tensor(slices), dense_sum_of_slices())


@MODES
def test_indexed_slices_of_lists_arrays_and_variables(run):
    # TensorFlow keeps them as they are given.
    def function():
        value = np.array([[RANK + 1.0]])
        # In eager code, since the modes make graphs of their own.
        value = tf.Variable(value) if tf.executing_eagerly() else value
        parts = (value, [RANK], np.array([SIZE, 1]))
        return tf.convert_to_tensor(hvd.allreduce(tf.IndexedSlices(*parts), op=hvd.Sum))

    assert np.asarray(run(function)).tolist() == [[rank + 1.0] for rank in range(SIZE)]


def test_indexed_slices_of_integers_truncate():
    mine = tf.IndexedSlices(tf.constant([[7]]), tf.constant([0]), tf.constant([1, 1]))
    result = hvd.allreduce(mine, op=hvd.Average)
    assert result.values.numpy().tolist() == [[7 // SIZE]] * SIZE


@MODES
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_allgather_of_uneven_parts(run, dtype):
    # Rank 0 has nothing to give.
    def part(rank):
        return tf.cast(tf.fill([rank, 2], rank % 2 if dtype == "bool" else rank), dtype)

    result = run(lambda: hvd.allgather(part(RANK)))
    expected = np.concatenate([as_numpy(part(rank)) for rank in range(SIZE)])
    np.testing.assert_array_equal(as_numpy(result), expected)
    assert np.asarray(result).dtype == tf.as_dtype(dtype).as_numpy_dtype


@MODES
def test_allgather_of_scalars(run):
    result = run(lambda: hvd.allgather(tf.constant(RANK * 10)))
    assert np.asarray(result).tolist() == [rank * 10 for rank in range(SIZE)]


def test_allgather_in_a_function_leaves_the_first_dimension_open():
    @tf.function
    def function():
        result = hvd.allgather(tf.ones([2, 3]))
        assert result.shape.as_list() == [None, 3]
        return tf.shape(result)

    assert function().numpy().tolist() == [2 * SIZE, 3]


@MODES
@pytest.mark.parametrize("root", ["first", "last"])
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_broadcast(run, root, dtype):
    root = 0 if root == "first" else SIZE - 1

    def mine(rank):
        if dtype == "bool":
            return tf.equal(values(rank, "int32") % 2, 0)  # neighbours differ
        return values(rank, dtype)

    result = run(lambda: hvd.broadcast(mine(RANK), root))
    np.testing.assert_array_equal(as_numpy(result), as_numpy(mine(root)))


def test_barrier_waits_for_the_last_rank():
    # Each rank tells when it left, and the slowest when it came.
    if RANK == SIZE - 1:
        time.sleep(0.3)
    came = time.time()
    hvd.barrier()
    left = time.time()
    times = hvd.allgather_object((came, left))
    assert min(left for _, left in times) >= max(came for came, _ in times)


def test_barrier_in_graphs():
    @tf.function
    def function():
        hvd.barrier()
        return tf.constant(1)

    assert function().numpy() == 1
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(hvd.barrier())


def test_tf1_session_may_run_collectives_in_any_order():
    # One session.run, no dependencies between them: TensorFlow chooses the order on each rank.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        sums = [hvd.allreduce(tf.constant([(RANK + 1.0) * i]), op=hvd.Sum) for i in range(30)]
        order = sums if RANK == 0 else sums[::-1]
        for _ in range(5):
            results = session.run(order)
            results = results if RANK == 0 else results[::-1]
            expected = [[sum(range(1, SIZE + 1)) * i] for i in range(30)]
            np.testing.assert_array_equal(results, expected)


def test_many_in_one_function_do_not_mix():
    @tf.function
    def function(x):
        return [hvd.allreduce(x * i, op=hvd.Sum) for i in range(40)]

    for step in range(5):
        results = function(tf.constant(RANK + 1.0 + step))
        total = sum(rank + 1.0 + step for rank in range(SIZE))
        assert [float(result) for result in results] == [total * i for i in range(40)]


def test_retracing_on_one_rank_alone():
    # Rank 0 traces the function anew, with shapes left open; the names must not count traces.
    @tf.function(reduce_retracing=True)
    def function(x):
        return hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)

    if RANK == 0:
        function.get_concrete_function(tf.ones([5]))
        function.get_concrete_function(tf.ones([6]))
        function.get_concrete_function(tf.ones([7]))
    for rows in (3, 2):
        result = function(tf.ones([rows + RANK]))
        assert float(result) == sum(rows + rank for rank in range(SIZE))


def test_same_names_in_two_functions():
    inner = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))

    @tf.function
    def outer(x):
        return inner(x) + 100 * hvd.allreduce(2 * x, op=hvd.Sum) + 10000 * inner(3 * x)

    total = sum(range(1, SIZE + 1))
    for _ in range(3):
        assert float(outer(tf.constant(RANK + 1.0))) == total * (1 + 200 + 30000)


@MODES
def test_user_names(run):
    def function():
        with tf.name_scope("scope"):
            return [
                hvd.allreduce(tf.constant(RANK + 1.0), op=hvd.Sum, name="mine"),
                hvd.allreduce(
                    tf.constant(RANK + 2.0), op=hvd.Sum, name="mine", ignore_name_scope=True
                ),
                hvd.allgather(tf.constant([RANK]), name="a b:c/d", ignore_name_scope=True),
            ]

    first, second, third = run(function)
    assert float(first) == sum(range(1, SIZE + 1))
    assert float(second) == sum(range(2, SIZE + 2))
    assert np.asarray(third).tolist() == list(range(SIZE))


def test_in_tf_cond():
    @tf.function
    def function(flag):
        x = tf.constant(RANK + 1.0)
        return tf.cond(
            flag,
            lambda: hvd.allreduce(x, op=hvd.Sum),
            lambda: hvd.allreduce(x, op=hvd.Max),
        )

    assert float(function(tf.constant(True))) == sum(range(1, SIZE + 1))
    assert float(function(tf.constant(False))) == SIZE


def test_variables_are_accepted():
    for variable in (tf.Variable([RANK + 1.0]), keras.Variable([RANK + 1.0])):
        assert hvd.allreduce(variable, op=hvd.Sum).numpy().tolist() == [sum(range(1, SIZE + 1))]


def test_horovods_namespaces():
    tensorflow, hvd_k = hvd_keras.tensorflow, hvd_keras.keras
    assert tensorflow.allreduce is hvd.allreduce
    assert hvd_keras.tensorflow.keras.allreduce is hvd_k.allreduce
    assert hvd_k.DistributedOptimizer is hvd.DistributedOptimizer
    assert (hvd_k.rank(), tensorflow.size()) == (RANK, SIZE)
    # The Keras one has the name where the other has `average`.
    result = hvd_k.allreduce([RANK + 1.0], "named", op=hvd.Sum)
    assert result.numpy().tolist() == [sum(range(1, SIZE + 1))]
    assert hvd_k.allgather([RANK], "named").numpy().tolist() == list(range(SIZE))
    assert hvd_k.broadcast([RANK], SIZE - 1, "named").numpy().tolist() == [SIZE - 1]
