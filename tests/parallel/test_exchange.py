"""reducescatter, alltoall, grouped allgather, Adasum and join, on three ranks."""

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def eager(function):
    return function()


def graph(function):
    return tf.function(function)()


def tf1(function):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(function())


MODES = pytest.mark.parametrize("run", [eager, graph, tf1])


def rows_of(rank, rows):
    """Where a rank's share of the rows lies."""
    shares = [rows // SIZE + (r < rows % SIZE) for r in range(SIZE)]
    begin = sum(shares[:rank])
    return slice(begin, begin + shares[rank])


@MODES
@pytest.mark.parametrize("rows", [0, 1, 3, 8])
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Max])
def test_reducescatter(run, rows, op):
    def of(rank):
        return np.arange(rows * 2, dtype="float32").reshape(rows, 2) * (rank + 1)

    result = run(lambda: hvd.reducescatter(of(RANK), op=op))
    combine = {hvd.Sum: np.sum, hvd.Average: np.mean, hvd.Max: np.max}[op]
    whole = combine([of(r) for r in range(SIZE)], axis=0)
    np.testing.assert_array_equal(result, whole[rows_of(RANK, rows)])


@MODES
def test_grouped_reducescatter_of_several_types(run):
    results = run(
        lambda: hvd.grouped_reducescatter(
            [tf.range(4) + RANK, tf.fill([3], 2.0), tf.range(5) * 2], op=hvd.Sum, prescale_factor=2
        )
    )
    expected = [
        np.arange(4) * 6 + 6,
        np.full(3, 12.0),
        np.arange(5) * 12,
    ]
    for result, whole in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, whole[rows_of(RANK, len(whole))])


def test_reducescatter_refuses_what_has_no_meaning():
    with pytest.raises(ValueError, match="no op=hvd.Adasum"):
        hvd.reducescatter([1.0], op=hvd.Adasum)
    np.testing.assert_array_equal(hvd.reducescatter(2.0, op=hvd.Sum), [6.0][rows_of(RANK, 1)])


@MODES
def test_alltoall_with_splits(run):
    # Rank s sends s + d rows [s, d] to rank d.
    rows = [[RANK, d] for d in range(SIZE) for _ in range(RANK + d)]
    tensor = np.array(rows, "int32").reshape(-1, 2)
    output, received = run(lambda: hvd.alltoall(tensor, [RANK + d for d in range(SIZE)]))
    assert np.asarray(received).dtype == np.int32
    np.testing.assert_array_equal(received, [s + RANK for s in range(SIZE)])
    expected = [[s, RANK] for s in range(SIZE) for _ in range(s + RANK)]
    np.testing.assert_array_equal(output, np.array(expected).reshape(-1, 2))


@MODES
def test_alltoall_in_equal_parts(run):
    result = run(lambda: hvd.alltoall(tf.range(6) + 10 * RANK))
    expected = [10 * s + 2 * RANK + i for s in range(SIZE) for i in range(2)]
    np.testing.assert_array_equal(result, expected)


def test_alltoall_that_does_not_divide_is_an_error_on_all_ranks():
    with pytest.raises(tf.errors.InvalidArgumentError, match="one split for each of the 3 ranks"):
        hvd.alltoall(tf.range(6 if RANK else 7))
    with pytest.raises(TypeError, match="expected integers"):
        hvd.alltoall(tf.range(3), [1.0, 1.0, 1.0])


@MODES
def test_grouped_allgather(run):
    results = run(
        lambda: hvd.grouped_allgather(
            [tf.fill([RANK, 2], RANK), tf.constant(float(RANK)), tf.fill([1], RANK)]
        )
    )
    np.testing.assert_array_equal(results[0], [[r, r] for r in range(SIZE) for _ in range(r)])
    np.testing.assert_array_equal(results[1], np.arange(SIZE, dtype="float32"))
    np.testing.assert_array_equal(results[2], np.arange(SIZE))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_adasum(dtype):
    equal = hvd.allreduce(tf.constant([1.0, -2.0], dtype), op=hvd.Adasum)
    np.testing.assert_array_equal(np.asarray(equal, "float64"), [1, -2])
    orthogonal = tf.one_hot(RANK, SIZE, dtype=dtype) * tf.cast(RANK + 1, dtype)
    result = hvd.allreduce(orthogonal, op=hvd.Adasum)
    assert result.dtype == dtype
    np.testing.assert_array_equal(np.asarray(result, "float64"), [1, 2, 3])


def test_adasum_of_integers_is_refused_on_all_ranks():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Adasum of int32 is not defined"):
        hvd.allreduce(tf.range(3), op=hvd.Adasum)


def numeric_gradient(loss, x, step=0.5):
    """Of the sum of all ranks' losses. Every loss here is a polynomial of degree 2 at most."""
    gradient = np.zeros_like(x)
    for rank in range(SIZE):
        for i in range(x.size):
            change = np.zeros_like(x)
            if rank == RANK:
                change.flat[i] = step
            total = hvd.allreduce(loss(x + change) - loss(x - change), op=hvd.Sum)
            if rank == RANK:
                gradient.flat[i] = total / (2 * step)
    return gradient


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
        lambda x: hvd.reducescatter(x, op=hvd.Average, prescale_factor=2, postscale_factor=0.25),
        lambda x: hvd.alltoall(x, [[1, 0, 3], [2, 2, 0], [0, 1, 3]][RANK])[0],
    ],
    ids=["reducescatter_sum", "reducescatter_average", "alltoall"],
)
def test_gradients(collective):
    x = np.arange(8.0).reshape(4, 2) + RANK

    def loss(value):
        return tf.reduce_sum(collective(value) ** 2) * (RANK + 1)

    with tf.GradientTape() as tape:
        variable = tf.Variable(x)
        value = loss(variable)
    np.testing.assert_allclose(tape.gradient(value, variable), numeric_gradient(loss, x))


@MODES
def test_join(run):
    # Rank r has r + 1 batches: an average is that of the ranks which still have one.
    for batch in range(RANK + 1):
        live = [r for r in range(SIZE) if r >= batch]
        result = run(lambda: hvd.allreduce(tf.constant([float(RANK)]), name="batch"))
        np.testing.assert_allclose(result, [np.mean(live)])
        rows = run(lambda: hvd.allgather(tf.constant([RANK])))
        np.testing.assert_array_equal(rows, live)
        sparse = tf.IndexedSlices(
            tf.constant([[float(RANK)]]), tf.constant([RANK]), tf.constant([SIZE, 1])
        )
        if run is eager:
            dense = tf.convert_to_tensor(hvd.allreduce(sparse))
            expected = [[r / len(live) if r in live else 0] for r in range(SIZE)]
            np.testing.assert_allclose(dense, expected, rtol=1e-6)
    assert int(run(hvd.join)) == SIZE - 1
    np.testing.assert_array_equal(hvd.allreduce([1.0], op=hvd.Sum, name="batch"), [SIZE])


def test_a_broadcast_from_a_rank_that_has_joined_is_an_error():
    if RANK != 1:
        np.testing.assert_array_equal(hvd.broadcast([RANK], 2), [2])
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1, has joined"):
            hvd.broadcast([RANK], 1)
        shares = hvd.reducescatter(tf.fill([4], RANK + 1.0), op=hvd.Sum)
        np.testing.assert_array_equal(shares, np.full(2 if RANK == 0 else 1, 4.0))
    hvd.join()


def test_topology_when_the_graph_runs():
    @tf.function
    def topology():
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()

    assert [int(x) for x in topology()] == [RANK, SIZE, RANK, SIZE]
    assert int(hvd.size_op(99)) == -3 and int(hvd.process_set_included_op(99)) == -3
