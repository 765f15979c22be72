"""horovod.tensorflow under the alias, on ranks: values, arguments by position, errors."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras import compat

compat.install()

import horovod.tensorflow as hvd  # noqa: E402
from horovod.common.exceptions import HorovodInternalError  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402

# A launch of its own: the alias changes Keras in the process.
pytestmark = pytest.mark.ranks(2, group="compat")

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = np.arange(SIZE)
TOTAL = int(RANKS.sum())


def test_allreduce():
    x = tf.constant([1.0, 2.0]) * RANK
    np.testing.assert_allclose(hvd.allreduce(x), np.array([1.0, 2.0]) * TOTAL / SIZE)
    np.testing.assert_allclose(hvd.allreduce(x, True), np.array([1.0, 2.0]) * TOTAL / SIZE)
    np.testing.assert_allclose(hvd.allreduce(x, average=False), np.array([1.0, 2.0]) * TOTAL)
    np.testing.assert_allclose(hvd.allreduce(x, op=hvd.Max, name="m"), [SIZE - 1, 2 * (SIZE - 1)])
    np.testing.assert_allclose(
        hvd.allreduce(x, None, "", "", hvd.Compression.fp16, hvd.Sum, 2.0, 0.5, "n"),
        np.array([1.0, 2.0]) * TOTAL,
    )
    np.testing.assert_allclose(mpi_ops._allreduce(x, "sum"), np.array([1.0, 2.0]) * TOTAL)


def test_average_of_integers_truncates():
    x = tf.constant([3, -3]) * RANK
    want = np.trunc(np.array([3, -3]) * TOTAL / SIZE)
    result = hvd.allreduce(x)
    assert result.dtype == tf.int32
    np.testing.assert_array_equal(result, want)


def test_grouped_allreduce():
    a, b = tf.ones([2]) * RANK, tf.constant([[5]], tf.int64)
    got = hvd.grouped_allreduce([a, b], op=hvd.Sum, name="g")
    np.testing.assert_array_equal(got[0], [TOTAL, TOTAL])
    np.testing.assert_array_equal(got[1], [[5 * SIZE]])


def test_allreduce_of_slices():
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([RANK]), tf.constant([SIZE, 2]))
    got = hvd.allreduce(slices, op=hvd.Average)
    assert isinstance(got, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(got), np.full([SIZE, 2], 1 / SIZE))


def test_allgather_and_broadcast():
    x = tf.fill([RANK + 1, 2], RANK)
    want = np.concatenate([np.full([r + 1, 2], r) for r in RANKS])
    np.testing.assert_array_equal(hvd.allgather(x, "gathered", False), want)
    np.testing.assert_array_equal(hvd.broadcast(tf.constant([RANK]), SIZE - 1, "b"), [SIZE - 1])


def test_objects():
    assert hvd.broadcast_object({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
    assert hvd.broadcast_object_fn(root_rank=0)([RANK]) == [0]
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": r} for r in range(SIZE)]


def test_broadcast_variables():
    variables = [tf.Variable([RANK + 1.0]), tf.Variable([[RANK]])]
    hvd.broadcast_variables(variables, root_rank=0, inplace=True)
    np.testing.assert_array_equal(variables[0], [1.0])
    np.testing.assert_array_equal(variables[1], [[0]])


def test_tape():
    w = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w) * (RANK + 1)
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    grads = tape.gradient(loss, [w], use_generic_names=True)
    np.testing.assert_allclose(grads[0], np.array([2.0, 4.0]) * (TOTAL + SIZE))


def test_embedding_gradient_as_dense():
    table = tf.Variable(tf.zeros([SIZE + 1, 2]))
    with hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=True) as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [0, RANK + 1]))
    grad = tape.gradient(loss, table)
    want = np.full([SIZE + 1, 2], 1 / SIZE)
    want[0] = 1.0
    assert not isinstance(grad, tf.IndexedSlices)
    np.testing.assert_allclose(grad, want)


def test_optimizer_of_tensorflow():
    w = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(tf.optimizers.SGD(0.5), "mine", False)
    optimizer.apply_gradients([(tf.constant([RANK + 1.0]), w)])
    np.testing.assert_allclose(w, [1.0 - 0.5 * (TOTAL + SIZE) / SIZE])
    assert optimizer.variables()[0] is optimizer.variables[0]
    assert type(optimizer).__name__ == "SGD"


@pytest.mark.parametrize(
    "error", [tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError]
)
def test_shapes_that_differ(error):
    with pytest.raises(error, match="rank 0"):
        hvd.allreduce(tf.zeros([RANK + 1]), name="differs")
    with pytest.raises(error):
        hvd.allreduce(tf.zeros([2], tf.float32 if RANK else tf.float64), name="types")
    with pytest.raises(error):
        hvd.broadcast(tf.zeros([2]), RANK, name="roots")
    with pytest.raises(error):
        hvd.allgather(tf.zeros([2, RANK + 1]), name="dimensions")


def test_errors_are_not_internal_ones_unless_a_rank_dies():
    with pytest.raises(Exception, match="rank 1") as info:
        hvd.allreduce(tf.zeros([RANK + 1]), name="shapes")
    assert not isinstance(info.value, HorovodInternalError)


def test_in_a_function():
    @tf.function
    def step(x):
        return hvd.allreduce(x, average=False), hvd.allgather(x, name="x"), hvd.broadcast(x, 1)

    total, gathered, sent = step(tf.constant([float(RANK)]))
    np.testing.assert_allclose(total, [TOTAL])
    np.testing.assert_allclose(gathered, RANKS)
    np.testing.assert_allclose(sent, [1.0])


def test_gradient_of_allreduce():
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = hvd.allreduce(x, op=hvd.Sum)
    np.testing.assert_allclose(tape.gradient(y, x, tf.constant([1.0, RANK])), [SIZE, TOTAL])
