"""broadcast_variables, broadcast_object, allgather_object."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
LAST = SIZE - 1

TYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]


@pytest.mark.parametrize("root", ["first", "last"])
def test_variables_of_all_types(root):
    root = 0 if root == "first" else LAST

    def values(rank):
        return [tf.cast([rank % 2, rank, 1], dtype) for dtype in TYPES]

    variables = [tf.Variable(value) for value in values(RANK)]
    assert hvd.broadcast_variables(variables, root) is None
    for variable, expected in zip(variables, values(root), strict=True):
        assert variable.dtype == expected.dtype
        np.testing.assert_array_equal(variable.numpy(), expected.numpy())


def test_variables_of_keras_and_nested_structures():
    a, b = keras.Variable(np.full(3, RANK), dtype="float32"), tf.Variable([RANK])
    seed = keras.random.SeedGenerator(RANK).state  # uint32
    hvd.broadcast_variables([{"a": a}, (b, [seed])], LAST)
    np.testing.assert_array_equal(a, [LAST] * 3)
    np.testing.assert_array_equal(b, [LAST])
    np.testing.assert_array_equal(seed, keras.random.SeedGenerator(LAST).state)
    hvd.broadcast_variables([], 0)


def test_more_variables_than_fit_into_a_bucket():
    variables = [tf.Variable(tf.fill([1 << 18], float(RANK * 10 + i))) for i in range(20)]
    hvd.broadcast_variables(variables, LAST)
    for i, variable in enumerate(variables):
        assert np.all(variable.numpy() == LAST * 10 + i)


def test_variables_in_a_function():
    variable = tf.Variable([float(RANK)])

    @tf.function
    def function():
        hvd.broadcast_variables([variable], LAST)
        return variable + 1

    assert function().numpy().tolist() == [LAST + 1]
    assert variable.numpy().tolist() == [LAST]


def test_variables_of_a_tf1_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([RANK, 5]))
        sync = hvd.broadcast_variables([variable], LAST)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(sync)
        assert session.run(variable).tolist() == [LAST, 5]


def test_the_root_keeps_its_values():
    variable = tf.Variable([1.0 / (RANK + 3)])
    hvd.broadcast_variables([variable], LAST)
    assert variable.numpy()[0] == np.float32(1.0 / (LAST + 3))


OBJECTS = [None, 5, "text", b"", {"rank": [1, 2]}, np.arange(5), "x" * 3_000_000]


@pytest.mark.parametrize("index", range(len(OBJECTS)))
def test_broadcast_object(index):
    mine = OBJECTS[index] if RANK == LAST else lambda: "cannot be pickled, and need not be"
    np.testing.assert_equal(hvd.broadcast_object(mine, LAST), OBJECTS[index])


def test_broadcast_object_returns_a_copy():
    mine = [RANK]
    received = hvd.broadcast_object(mine, name="copy")
    assert received == [0] and received is not mine


def test_allgather_object():
    gathered = hvd.allgather_object({"rank": RANK, "data": "x" * RANK * 100_000})
    assert [item["rank"] for item in gathered] == list(range(SIZE))
    assert [len(item["data"]) for item in gathered] == [100_000 * r for r in range(SIZE)]


def test_objects_while_a_graph_is_built_and_in_tf1():
    @tf.function
    def function():
        return tf.constant(hvd.broadcast_object(RANK * 10, LAST))

    assert int(function()) == LAST * 10
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert hvd.broadcast_object(RANK, LAST, session) == LAST
        assert hvd.allgather_object(RANK, session=session, name="n") == list(range(SIZE))
