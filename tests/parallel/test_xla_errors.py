"""What goes wrong in a compiled function is told on all ranks, by name, with what to do."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from xla_cases import RANK, SIZE, jit, mixed

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

RUNS = pytest.mark.parametrize("run", [jit, mixed])


@pytest.fixture(autouse=True)
def and_it_still_works():
    yield
    for _ in range(3):
        try:
            result = jit(lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Sum))
        except tf.errors.InvalidArgumentError:
            # Of two calls that fail, a rank may have made the first alone, and not wait for the
            # others in the second.
            continue
        break
    assert float(result) == SIZE


@RUNS
def test_shapes(run):
    x = tf.ones([RANK + 2])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(lambda x: hvd.allreduce(x, name="weights"), x)
    message = str(caught.value)
    assert "weights" in message and "disagree" in message
    assert "rank 0: allreduce(average) of a float32 tensor, shape [2]" in message
    assert "rank 1: allreduce(average) of a float32 tensor, shape [3]" in message


@RUNS
def test_names(run):
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)first.*second|second.*first"):
        run(lambda: hvd.allreduce([1.0], name="first" if RANK == 0 else "second"))


def test_root_that_does_not_exist():
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"root_rank {SIZE} does not exist"):
        jit(lambda: hvd.broadcast([1.0], root_rank=SIZE))


def test_type_without_meaning_for_the_operation():
    with pytest.raises(tf.errors.InvalidArgumentError, match="bool"):
        jit(lambda: hvd.allreduce([True], op=hvd.Sum))


def test_rank_that_is_not_in_the_process_set():
    pair = hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="rank 1") if RANK == 1 else contextlib.nullcontext():
        jit(lambda: hvd.allreduce([1.0], process_set=pair))
    hvd.remove_process_set(pair)


@RUNS
@pytest.mark.parametrize("rows", [[1, 2, 3], [2, 2, 1]])
def test_allgather_of_unequal_parts(run, rows):
    # The sum of the first is right on rank 1, which must not get a number all the same.
    with pytest.raises(tf.errors.InvalidArgumentError, match="allgather '.*parts'") as caught:
        run(lambda x: hvd.allgather(x, name="parts"), tf.ones([rows[RANK], 2]))
    if run is jit:
        message = str(caught.value)
        assert f"send {rows[0]}, {rows[1]}, {rows[2]} (in rank order)" in message
        assert "jit_compile=True" in message and "pad the tensors to one length" in message


def test_sparse_gradients_of_unequally_many_rows():
    slices = tf.IndexedSlices(tf.ones([RANK + 1, 2]), tf.range(RANK + 1), tf.constant([8, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="pad the tensors"):
        jit(lambda: tf.convert_to_tensor(hvd.allreduce(slices)))


@pytest.mark.parametrize(
    "splits", [[1, 2, 3], [[2, 2, 2], [2, 2, 2], [3, 2, 1]], [[3, 3, 0], [0, 3, 3], [2, 2, 2]]]
)
def test_alltoall_of_unequal_parts(splits):
    mine = splits if isinstance(splits[0], int) else splits[RANK]
    with pytest.raises(tf.errors.InvalidArgumentError, match="alltoall"):
        jit(lambda: hvd.alltoall(tf.ones([6]), mine))


def test_splits_that_do_not_fit():
    with pytest.raises(tf.errors.InvalidArgumentError, match="add up to the first dimension, 6"):
        jit(lambda: hvd.alltoall(tf.ones([6]), [1, 1, 1]))


def test_sizes_that_depend_on_data():
    x = tf.constant([1.0, -1.0, 2.0])
    for function in (
        lambda x: hvd.allreduce(tf.boolean_mask(x, x > 0)),
        lambda x: hvd.allgather(tf.boolean_mask(x, x > 0)),
    ):
        with pytest.raises(tf.errors.UnimplementedError, match="depends on data.*pad the tensor"):
            jit(function, x)


def test_join_cannot_be_compiled():
    with pytest.raises(tf.errors.UnimplementedError, match=r"hvd.join\(\).*outside"):
        jit(lambda: hvd.join())


def test_ranks_that_have_joined():
    compiled = tf.function(lambda x: hvd.allreduce(x), jit_compile=True)
    gather = tf.function(lambda x: hvd.allgather(x), jit_compile=True)
    if RANK != 0:
        np.testing.assert_array_equal(compiled(tf.constant([float(RANK)])), [1.5])
        with pytest.raises(tf.errors.InvalidArgumentError, match="room for 3 rows.*send 1, 1"):
            gather(tf.constant([1.0]))
    hvd.join()
    np.testing.assert_array_equal(gather(tf.constant([float(RANK)])), range(SIZE))


def test_objects_and_tensors_of_a_compiled_function():
    # The values of tensors are not known while a function is traced.
    with pytest.raises((TypeError, ValueError, NotImplementedError, RuntimeError)):
        jit(lambda x: hvd.allgather_object(x), tf.constant(1.0))
