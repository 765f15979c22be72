"""DistributedOptimizer around tf.compat.v1.train optimizers, in graphs and sessions."""

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import process_sets
from hvd_keras.tensorflow import optimizer as dispatch
from hvd_keras.tensorflow.hooks import broadcast_global_variables

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = np.mean(range(1, SIZE + 1))
train = tf.compat.v1.train

REFERENCE = pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])


@pytest.fixture(autouse=True)
def graph(request):
    if request.node.name.endswith("in_eager_code"):
        yield None
        return
    with tf.Graph().as_default() as graph:
        yield graph


def variable(name, value, resource=True):
    return tf.compat.v1.get_variable(
        name, initializer=tf.constant(value, tf.float32), use_resource=resource
    )


def distributed(optimizer, **options):
    return dispatch.DistributedOptimizer(optimizer, **options)


def session():
    result = tf.compat.v1.Session()
    result.run(tf.compat.v1.global_variables_initializer())
    result.run(tf.compat.v1.local_variables_initializer())
    return result


@REFERENCE
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_minimize(resource, op):
    factor = MEAN if op is hvd.Average else MEAN * SIZE
    v = variable("v", [1.0, 2.0], resource)
    optimizer = distributed(train.GradientDescentOptimizer(0.5), op=op)
    step = train.get_or_create_global_step()
    train_op = optimizer.minimize(tf.reduce_sum(v) * (RANK + 1.0), global_step=step)
    with session() as sess:
        for _ in range(3):
            sess.run(train_op)
        np.testing.assert_allclose(sess.run(v), np.array([1.0, 2.0]) - 1.5 * factor, rtol=1e-6)
        assert sess.run(step) == 3


@REFERENCE
def test_compute_then_clip_then_apply(resource):
    v = variable("v", [3.0, 4.0], resource)
    unused = variable("unused", [1.0], resource)
    optimizer = distributed(train.GradientDescentOptimizer(1.0))
    pairs = optimizer.compute_gradients(tf.reduce_sum(v * v) * (RANK + 1.0) / 2, [v, unused])
    assert pairs[1][0] is None
    grads, norm = tf.clip_by_global_norm([pairs[0][0]], 1.0)
    train_op = optimizer.apply_gradients([(grads[0], v)])
    with session() as sess:
        assert sess.run(norm) == pytest.approx(5 * MEAN, rel=1e-6)
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(v), [3 - 0.6, 4 - 0.8], rtol=1e-5)


def test_slots_and_variables_are_those_of_the_inner_optimizer():
    v = variable("v", [1.0])
    inner = train.AdamOptimizer(0.1)
    optimizer = distributed(inner)
    optimizer.minimize(tf.reduce_sum(v))
    assert optimizer.get_slot_names() == inner.get_slot_names() == ["m", "v"]
    assert optimizer.get_slot(v, "m") is inner.get_slot(v, "m")
    assert [x.name for x in optimizer.variables()] == [x.name for x in inner.variables()]
    assert len(optimizer.variables()) == 4
    assert optimizer.get_name() == "DistributedAdamOptimizer"
    assert isinstance(optimizer, train.Optimizer)


def test_adagrad_equals_one_process_on_the_joined_batch():
    x = np.arange(4 * SIZE, dtype=np.float32).reshape(-1, 2) / 4
    y = x.sum(axis=1)

    def weights(data, target, wrap):
        with tf.Graph().as_default():
            w = variable("w", [0.1, -0.2])
            loss = tf.reduce_mean((tf.linalg.matvec(tf.constant(data), w) - target) ** 2)
            train_op = wrap(train.AdagradOptimizer(0.1)).minimize(loss)
            with session() as sess:
                for _ in range(5):
                    sess.run(train_op)
                return sess.run(w)

    mine = slice(RANK * 2, RANK * 2 + 2)
    got = weights(x[mine], y[mine], distributed)
    np.testing.assert_allclose(got, weights(x, y, lambda o: o), rtol=1e-5)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@REFERENCE
def test_embedding(resource, sparse_as_dense):
    table = variable("table", np.zeros((4, 2)), resource)
    rows = tf.nn.embedding_lookup(table, [0, RANK + 1])
    optimizer = distributed(train.GradientDescentOptimizer(1.0), sparse_as_dense=sparse_as_dense)
    pairs = optimizer.compute_gradients(tf.reduce_sum(rows))
    assert isinstance(pairs[0][0], tf.IndexedSlices) is (not sparse_as_dense)
    train_op = optimizer.apply_gradients(pairs)
    expected = np.zeros((4, 2))
    expected[0] = -1.0
    expected[1 : SIZE + 1] = -1.0 / SIZE
    with session() as sess:
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(table), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "options", [{"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 2.0}]
)
def test_options(options):
    v = variable("v", [1.0])
    train_op = distributed(train.GradientDescentOptimizer(1.0), **options).minimize(
        tf.reduce_sum(v) * (RANK + 1.0)
    )
    with session() as sess:
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(v), [1.0 - MEAN], rtol=1e-3)


@pytest.mark.parametrize("average", [False, True])
def test_backward_passes_per_step(average):
    v = variable("v", [1.0])
    x = tf.compat.v1.placeholder(tf.float32, [])
    optimizer = distributed(
        train.MomentumOptimizer(1.0, 0.5),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )
    step = train.get_or_create_global_step()
    train_op = optimizer.minimize(tf.reduce_sum(v) * x * (RANK + 1.0), global_step=step)
    seen = []
    with session() as sess:
        for value in (1.0, 2.0, 3.0, 4.0):
            sess.run(train_op, {x: value})
            seen.append(float(sess.run(v)[0]))
        assert sess.run(step) == 2
    divide = 2 if average else 1
    first = 3 * MEAN / divide
    second = 7 * MEAN / divide + 0.5 * first
    np.testing.assert_allclose(seen, [1, 1 - first, 1 - first, 1 - first - second], rtol=1e-5)


def test_backward_passes_per_step_of_reference_variables():
    v = variable("v", [1.0], resource=False)
    optimizer = distributed(train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="disable_v2_behavior"):
        optimizer.minimize(tf.reduce_sum(v))


def test_a_local_variable_keeps_its_gradient():
    shared, local = variable("shared", [0.0]), variable("local", [0.0])
    optimizer = distributed(train.GradientDescentOptimizer(1.0))
    optimizer.register_local_var(local)
    train_op = optimizer.minimize(tf.reduce_sum(shared + local) * (RANK + 1.0))
    with session() as sess:
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(shared), [-MEAN], rtol=1e-6)
        np.testing.assert_allclose(sess.run(local), [-(RANK + 1.0) / SIZE], rtol=1e-6)


def test_process_set():
    own = [process_sets.add_process_set([rank]) for rank in range(SIZE)][RANK]
    v = variable("v", [0.0])
    optimizer = distributed(train.GradientDescentOptimizer(1.0), process_set=own)
    train_op = optimizer.minimize(tf.reduce_sum(v) * (RANK + 1.0))
    with session() as sess:
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(v), [-(RANK + 1.0)], rtol=1e-6)


def test_in_eager_code():
    v = tf.Variable([1.0, 2.0])
    optimizer = distributed(train.GradientDescentOptimizer(1.0))
    optimizer.minimize(lambda: tf.reduce_sum(v) * (RANK + 1.0), var_list=[v])
    np.testing.assert_allclose(v, [1.0 - MEAN, 2.0 - MEAN], rtol=1e-6)


def test_gradients_that_were_not_reduced_are_told():
    v = variable("v", [1.0])
    optimizer = distributed(train.GradientDescentOptimizer(1.0))
    with pytest.warns(UserWarning, match="not reduced"):
        optimizer.apply_gradients([(tf.ones([1]), v)])


def test_wrapping_twice_is_an_error():
    optimizer = distributed(train.GradientDescentOptimizer(1.0))
    with pytest.raises(ValueError, match="distributed already"):
        distributed(optimizer)
    with pytest.raises(ValueError, match="backward_passes_per_step is 0"):
        distributed(train.GradientDescentOptimizer(1.0), backward_passes_per_step=0)


@REFERENCE
def test_broadcast_global_variables(resource):
    v = variable("v", [float(RANK + 1)], resource)
    w = tf.compat.v1.get_variable(
        "w", initializer=tf.constant([RANK, RANK], tf.int64), use_resource=resource
    )
    root = SIZE - 1
    broadcast = broadcast_global_variables(root)
    with session() as sess:
        sess.run(broadcast)
        np.testing.assert_array_equal(sess.run(v), [root + 1.0])
        np.testing.assert_array_equal(sess.run(w), [root, root])


def test_broadcast_global_variables_in_eager_code():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        broadcast_global_variables(0)


def test_collectives_fetched_in_any_order():
    count = 8
    tensors = [hvd.allreduce(tf.constant(float(RANK + i)), op=hvd.Sum) for i in range(count)]
    tensors.append(hvd.allgather(tf.constant([RANK])))
    tensors.append(hvd.broadcast(tf.constant([RANK + 7]), 0))
    order = np.random.default_rng(RANK).permutation(len(tensors))
    with session() as sess:
        for _ in range(5):
            fetched = sess.run([tensors[i] for i in order])
            got = dict(zip(order.tolist(), fetched, strict=True))
            for i in range(count):
                assert got[i] == sum(range(SIZE)) + SIZE * i
            np.testing.assert_array_equal(got[count], range(SIZE))
            np.testing.assert_array_equal(got[count + 1], [7])
