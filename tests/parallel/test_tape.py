"""DistributedGradientTape."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = np.mean(range(1, SIZE + 1))

GRAPH = pytest.mark.parametrize("graph", [False, True])


def maybe_function(function, graph):
    return tf.function(function) if graph else function


@GRAPH
@pytest.mark.parametrize("variable", [tf.Variable, keras.Variable])
def test_average(variable, graph):
    v = variable([1.0, 2.0])

    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.convert_to_tensor(v) ** 2) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, v)

    np.testing.assert_allclose(maybe_function(run, graph)(), [2 * MEAN, 4 * MEAN], rtol=1e-6)


@GRAPH
def test_sum_with_the_tape_as_context_manager(graph):
    v = tf.Variable(3.0)

    def run():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = v * (RANK + 1.0)
        return tape.gradient(loss, v)

    assert float(maybe_function(run, graph)()) == sum(range(1, SIZE + 1))


@GRAPH
def test_nested_structure_of_sources(graph):
    a, b, c = tf.Variable(1.0), tf.Variable([1.0]), tf.Variable([[1.0]])
    sources = {"a": a, "rest": [b, (c,)]}

    def run():
        with tf.GradientTape() as tape:
            loss = (RANK + 1.0) * (a + 2 * tf.reduce_sum(b) + 3 * tf.reduce_sum(c))
        return hvd.DistributedGradientTape(tape).gradient(loss, sources)

    grads = maybe_function(run, graph)()
    tf.nest.assert_same_structure(grads, sources)
    np.testing.assert_allclose(grads["a"], MEAN, rtol=1e-6)
    np.testing.assert_allclose(grads["rest"][0], [2 * MEAN], rtol=1e-6)
    np.testing.assert_allclose(grads["rest"][1][0], [[3 * MEAN]], rtol=1e-6)


@GRAPH
def test_watched_tensors_as_sources(graph):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x**2) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, x)

    got = maybe_function(run, graph)(tf.constant([1.0, 2.0]))
    np.testing.assert_allclose(got, [2 * MEAN, 4 * MEAN], rtol=1e-6)


def test_tensor_sources_whose_shape_one_rank_does_not_know():
    # Static shapes must not decide how gradients are put together.
    def run(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            loss = tf.reduce_sum(x) * (RANK + 1.0) + tf.reduce_sum(y) * 10.0 * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, [x, y])

    shape = [None] if RANK == 0 else [3]
    function = tf.function(run, input_signature=[tf.TensorSpec(shape), tf.TensorSpec([3])])
    x, y = function(tf.ones([3]), tf.ones([3]))
    np.testing.assert_allclose([x, y], [[MEAN] * 3, [10 * MEAN] * 3], rtol=1e-6)


def test_unconnected_sources():
    a, b = tf.Variable(1.0), tf.Variable([1.0, 1.0])
    with tf.GradientTape(persistent=True) as tape:
        loss = a * (RANK + 1.0)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, [a, b])
    assert float(grads[0]) == MEAN and grads[1] is None
    zero = tape.gradient(loss, [b], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zero[0].numpy().tolist() == [0.0, 0.0]


def test_output_gradients():
    v = tf.Variable([1.0, 1.0])
    with tf.GradientTape() as tape:
        y = v * 2.0
    grads = hvd.DistributedGradientTape(tape).gradient(
        y, v, output_gradients=tf.constant([1.0, 10.0]) * (RANK + 1)
    )
    np.testing.assert_allclose(grads, [2 * MEAN, 20 * MEAN], rtol=1e-6)


def test_persistent_tape_and_what_is_passed_on():
    v = tf.Variable(2.0)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        extra = tf.constant(1.0)
        tape.watch(extra)
        y = v**2 * (RANK + 1.0) + extra
        with tape.stop_recording():
            z = v**2
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, v), 4 * MEAN, rtol=1e-6)
    assert tape.gradient(z, v) is None
    assert float(tape.jacobian(y, v)) == 4.0 * (RANK + 1)  # local
    assert [w.ref() for w in tape.watched_variables()] == [v.ref()]


@GRAPH
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(graph, as_dense):
    table = tf.Variable(tf.ones([SIZE + 2, 2]))

    def run():
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, [0, RANK + 1, RANK + 1])
            loss = tf.reduce_sum(rows) * (RANK + 1.0)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense)
        grad = tape.gradient(loss, table)
        assert isinstance(grad, tf.IndexedSlices) != as_dense
        return tf.convert_to_tensor(grad)

    expected = np.zeros((SIZE + 2, 2))
    expected[0] = MEAN
    for rank in range(SIZE):
        expected[rank + 1] = 2 * (rank + 1) / SIZE
    np.testing.assert_allclose(maybe_function(run, graph)(), expected, rtol=1e-6)


def test_compression():
    v = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v) * 0.1 * (RANK + 1.0)
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.bf16)
    grad = tape.gradient(loss, v)
    assert grad.dtype == tf.float32 and float(grad[0]) != np.float32(0.1 * MEAN)
    np.testing.assert_allclose(grad, [0.1 * MEAN], rtol=1e-2)


def test_two_tapes_in_one_function():
    # As in a GAN: two models, two tapes, one traced step.
    a, b = tf.Variable([1.0, 1.0]), tf.Variable([1.0, 1.0])

    @tf.function
    def step():
        with tf.GradientTape() as tape_a, tf.GradientTape() as tape_b:
            loss_a = tf.reduce_sum(a) * (RANK + 1.0)
            loss_b = tf.reduce_sum(b) * (RANK + 1.0) * 10
        tape_a, tape_b = map(hvd.DistributedGradientTape, (tape_a, tape_b))
        return tape_a.gradient(loss_a, a), tape_b.gradient(loss_b, b)

    for _ in range(5):
        grad_a, grad_b = step()
        np.testing.assert_allclose(grad_a, [MEAN] * 2, rtol=1e-6)
        np.testing.assert_allclose(grad_b, [10 * MEAN] * 2, rtol=1e-6)


def test_wrong_arguments():
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(TypeError, match="expected a tf.GradientTape"):
        hvd.DistributedGradientTape([])
    with pytest.raises(ValueError, match="expected hvd.Average, hvd.Sum or"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Min)
    with pytest.raises(ValueError, match="at least 0"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=-1)


def test_a_wrapped_tape_is_a_tape_and_all_but_its_gradient_is_the_ranks_own():
    x = tf.Variable([1.0 + RANK, 2.0])
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    assert isinstance(tape, tf.GradientTape)
    with tape:
        y = x * x
        with tape.stop_recording():
            _ = x * 3.0
    assert [id(v) for v in tape.watched_variables()] == [id(x)]
    np.testing.assert_array_equal(tape.jacobian(y, x), np.diag([2.0 + 2 * RANK, 4.0]))
    mean = 2 * np.mean(np.arange(SIZE) + 1)
    np.testing.assert_allclose(tape.gradient(y, x), [mean, 4.0])
