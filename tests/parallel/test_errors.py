"""What goes wrong on one rank is told on all of them, soon, by name."""

import os
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import _library

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()

pytestmark = [pytest.mark.ranks(3), pytest.mark.skipif(SIZE < 2, reason="needs two ranks")]
GRAPH = pytest.mark.parametrize("graph", [False, True])


@pytest.fixture(autouse=True)
def in_time_and_still_working():
    """Every rank gets its error within 2 s, and the next collective works."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 6  # of which some are tracing
    assert hvd.allgather_object(RANK) == list(range(SIZE))


def run(function, graph=False):
    return (tf.function(function) if graph else function)()


@GRAPH
def test_shapes(graph):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(lambda: hvd.allreduce(tf.ones([RANK + 2]), name="weights"), graph)
    message = str(caught.value)
    assert "weights" in message and "disagree" in message
    assert "rank 0: allreduce(average) of a float32 tensor, shape [2]" in message
    assert "rank 1: allreduce(average) of a float32 tensor, shape [3]" in message


@GRAPH
def test_types(graph):
    dtype = "float32" if RANK == 0 else "float64"
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)float32.*float64"):
        run(lambda: hvd.allreduce(tf.ones([2], dtype)), graph)


def test_operations():
    op = hvd.Sum if RANK == 0 else hvd.Max
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)allreduce\(sum\).*\(max\)"):
        hvd.allreduce([1.0], op=op)


def test_factors():
    with pytest.raises(tf.errors.InvalidArgumentError, match="prescale 2"):
        hvd.allreduce([1.0], prescale_factor=1.0 + RANK % 2)


@GRAPH
def test_names(graph):
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)first.*second|second.*first"):
        run(lambda: hvd.allreduce([1.0], name="first" if RANK == 0 else "second"), graph)


def test_roots():
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)root_rank 0.*root_rank 1"):
        hvd.broadcast([1.0], root_rank=min(RANK, 1))


@GRAPH
def test_root_that_does_not_exist(graph):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"root_rank {SIZE} does not exist"):
        run(lambda: hvd.broadcast([1.0], root_rank=SIZE), graph)
    with pytest.raises(ValueError, match=f"root_rank {SIZE} does not exist"):
        hvd.broadcast_object(1, root_rank=SIZE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank -1 does not exist"):
        hvd.broadcast([1.0], root_rank=-1)
    with pytest.raises(TypeError, match="not a rank"):
        hvd.broadcast([1.0], root_rank=0.5)


def test_inner_dimensions_of_allgather():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)\[\*,2\].*\[\*,3\]"):
        hvd.allgather(tf.ones([1, 2 + RANK % 2]))


def test_type_without_meaning_for_the_operation():
    for op in (hvd.Sum, hvd.Average):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bool"):
            hvd.allreduce([True], op=op)


def test_types_that_cannot_be_sent():
    with pytest.raises(TypeError, match="type string.*allgather_object"):
        hvd.allgather(["text"])
    with pytest.raises(TypeError, match="complex64.*tf.math.real"):
        hvd.allreduce(tf.constant([1j], tf.complex64))
    with pytest.raises(TypeError, match="is not a reduction"):
        hvd.allreduce([1.0], op="sum")


def test_sparse_with_operations_that_cannot():
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="hvd.Max"):
        hvd.allreduce(slices, op=hvd.Max)


def test_object_that_cannot_be_pickled():
    for send in (hvd.allgather_object, hvd.broadcast_object):
        with pytest.raises(ValueError, match="object of rank 0 cannot be pickled"):
            send(lambda: None if RANK == 0 else 1)


def model(units, name):
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)], name=name
    )


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_models_that_differ(run_eagerly):
    mine = model(4 if RANK == 0 else 5, "model")
    mine.compile(hvd.DistributedOptimizer("sgd"), "mse", run_eagerly=run_eagerly)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        mine.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    message = str(caught.value)
    assert "gradients" in message and "dense" in message
    assert "[3,4]" in message and "[3,5]" in message


def test_a_gradient_that_one_rank_alone_has_not():
    a, b = keras.Variable([1.0]), keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer("sgd")
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)gradients.*disagree|disagree"):
        optimizer.apply([tf.ones([1]), None if RANK == 0 else tf.ones([2])], [a, b])


def test_one_rank_has_more_variables():
    variables = [keras.Variable(np.ones(1000)) for _ in range(2 + RANK % 2)]
    optimizer = hvd.DistributedOptimizer("sgd")
    with pytest.raises(tf.errors.InvalidArgumentError):
        optimizer.apply([tf.ones([1000]) for _ in variables], variables)


def test_variables_to_broadcast_that_differ():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)\[2\].*\[3\]"):
        hvd.broadcast_variables(
            [tf.Variable(tf.ones([1])), tf.Variable(tf.ones([2 + RANK % 2]))], 0
        )


def test_what_is_not_a_variable():
    with pytest.raises(ValueError, match="not a variable"):
        hvd.broadcast_variables([tf.constant(1.0)], 0)


def test_a_layer_more_on_one_rank_does_no_harm():
    # Keras numbers layers, models and optimizers per process, so names differ from here on.
    if RANK == 0:
        model(7, None).compile("sgd", "mse")
        keras.optimizers.SGD()
    mine = model(4, None)
    mine.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    mine.fit(np.ones((4, 3)) * RANK, np.ones((4, 1)), verbose=0)


@pytest.mark.parametrize("reason", ["hvd_keras was built without XLA (of TensorFlow 2.16)"])
def test_functions_that_xla_is_to_compile_where_it_cannot(monkeypatch, reason):
    monkeypatch.setattr(_library, "no_xla", lambda: reason)
    mine = model(4, None)
    mine.compile(hvd.DistributedOptimizer("sgd"), "mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="built without XLA.*jit_compile=False"):
        mine.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    with pytest.raises(NotImplementedError, match="leave jit_compile out"):
        tf.function(lambda: hvd.broadcast([1.0], 0), jit_compile=True)()


@pytest.mark.parametrize("graph", [False, True])
def test_barrier_with_a_timeout(graph):
    def door(timeout):
        hvd.barrier("door", timeout=timeout)

    enter = tf.function(door) if graph else door
    if hvd.rank() == 0:
        with pytest.raises(tf.errors.DeadlineExceededError) as caught:
            enter(0.3)
        text = str(caught.value)
        assert "barrier 'door" in text and "until its timeout for rank 1 (host " in text
    hvd.barrier("all are here")
    enter(30.0)
    with pytest.raises(ValueError, match="timeout is 0; expected seconds greater than 0"):
        hvd.barrier(timeout=0)


def test_a_forked_child_cannot_take_part_and_does_no_harm():
    child = os.fork()
    if child == 0:
        code = 1
        try:
            hvd.allreduce(tf.ones([2]))
        except Exception as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            hvd.shutdown()  # as the end of its script would
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [hvd.size()] * 2
