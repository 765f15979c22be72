"""make_buckets, and the names of collectives."""

import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.buckets import Piece, make_buckets
from hvd_keras.naming import collective_name, node_name


def buckets(sizes, threshold, dtypes=None):
    dtypes = dtypes or ["float32"] * len(sizes)
    pieces = [Piece(i, dtype, n) for i, (dtype, n) in enumerate(zip(dtypes, sizes, strict=True))]
    return [[piece.position for piece in bucket] for bucket in make_buckets(pieces, threshold)]


def test_a_bucket_takes_what_fits():
    assert buckets([4, 4, 4, 4], 8) == [[0, 1], [2, 3]]
    assert buckets([4, 5, 4, 4], 8) == [[0], [1], [2, 3]]


def test_what_is_larger_than_a_bucket_is_one():
    assert buckets([1, 100, 1], 8) == [[0], [1], [2]]


def test_threshold_of_zero_sends_each_alone():
    assert buckets([4, 0, 0], 0) == [[0], [1], [2]]


def test_types_do_not_mix_and_each_fills_its_own():
    assert buckets([4, 4, 4, 4], 8, ["a", "b", "a", "b"]) == [[0, 2], [1, 3]]
    assert buckets([], 8) == []


# Names.


def names_in(function):
    names = []
    tf.function(lambda: function(names)).get_concrete_function()
    return names


def test_eager_names_repeat():
    assert [collective_name("allreduce"), collective_name("allreduce")] == ["allreduce"] * 2
    assert collective_name("allreduce", "mine") == "mine"


def test_names_in_a_graph_are_unique_and_the_same_in_each_trace():
    def step(names):
        names.append(collective_name("allreduce"))
        names.append(collective_name("allreduce"))
        with tf.name_scope("scope"):
            names.append(collective_name("allreduce"))
            names.append(collective_name("allreduce", "mine"))
            names.append(collective_name("allreduce", "mine", ignore_name_scope=False))

    expected = ["allreduce", "allreduce_1", "allreduce_2", "mine", "scope/mine"]
    for _ in range(2):
        assert [name.rpartition("<lambda>/")[2] for name in names_in(step)] == expected


def test_branches_and_loops_have_no_counters_of_the_process():
    def step(names):
        def branch():
            names.append(collective_name("allreduce"))
            return 1

        def body(i):
            names.append(collective_name("allreduce"))
            return i + 1

        tf.cond(tf.constant(True), branch, branch)
        tf.while_loop(lambda i: i < 1, body, [0])

    first, second = names_in(step), names_in(step)
    assert first == second
    assert len(set(first)) == len(first) == 3


def test_names_in_a_tf1_graph():
    with tf.Graph().as_default():
        assert collective_name("allreduce") == "allreduce"
        assert collective_name("allreduce") == "allreduce_1"
    with tf.Graph().as_default():
        assert collective_name("allreduce") == "allreduce"


def test_node_names_are_what_tensorflow_accepts():
    for text in ("a b:0", "<lambda>/x", "_x", "/x", "ä>\\", "ok/x.y-z"):
        with tf.Graph().as_default():
            tf.constant(1, name=node_name(text))
    assert node_name("ok/x.y-z") == "ok/x.y-z"


@pytest.mark.parametrize("place", ["function", "branch", "loop"])
def test_collectives_of_a_function_do_not_wait_for_each_other(place):
    hvd.init()
    attributes = []

    def body(x):
        results = [hvd.allreduce(x), hvd.allgather([x]), hvd.broadcast(x, 0)]
        attributes.extend(r.op.get_attr("_independent_side_effects") for r in results)
        return x + 1

    @tf.function
    def function(x):
        if place == "branch":
            return tf.cond(x > 0, lambda: body(x), lambda: x)
        if place == "loop":
            return tf.while_loop(lambda i: i < 2, lambda i: [body(i)], [x])
        return body(x)

    function.get_concrete_function(tf.constant(1.0))
    assert attributes and all(attributes)
