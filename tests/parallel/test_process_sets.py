"""Process sets: collectives among some of the ranks."""

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


@pytest.fixture
def pair():
    process_set = hvd.add_process_set([2, 0])
    yield process_set
    hvd.remove_process_set(process_set)


def test_a_set_knows_its_ranks(pair):
    assert pair.ranks == [0, 2] and pair.size() == 2 and pair.process_set_id == 1
    assert pair.included() == (RANK != 1)
    if RANK == 1:
        with pytest.raises(ValueError, match="rank 1 is not in"):
            pair.rank()
    else:
        assert pair.rank() == RANK // 2
    assert int(hvd.size_op(1)) == 2 and int(hvd.process_set_included_op(1)) == (RANK != 1)
    assert hvd.global_process_set.ranks == [0, 1, 2] and hvd.global_process_set.included()


def test_every_collective_works_on_the_members(pair):
    if RANK == 1:
        for call in (
            lambda: hvd.allreduce([1.0], process_set=pair),
            lambda: hvd.broadcast([1.0], 0, process_set=pair),
            lambda: hvd.allgather_object(1, process_set=pair),
        ):
            with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
                call()
        return
    arguments = {"process_set": pair}
    np.testing.assert_array_equal(hvd.allreduce([float(RANK)], **arguments), [1])
    np.testing.assert_array_equal(hvd.allgather([RANK], **arguments), [0, 2])
    np.testing.assert_array_equal(hvd.broadcast([RANK], 2, **arguments), [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank 1 does not exist"):
        hvd.broadcast([RANK], 1, **arguments)
    scattered = hvd.reducescatter(tf.range(3), op=hvd.Sum, **arguments)
    np.testing.assert_array_equal(scattered, [0, 2] if RANK == 0 else [4])
    np.testing.assert_array_equal(
        hvd.alltoall(tf.range(2) + RANK, **arguments), [0, 2] if RANK == 0 else [1, 3]
    )
    assert hvd.allgather_object(RANK, **arguments) == [0, 2]
    assert hvd.broadcast_object(RANK, 2, **arguments) == 2
    hvd.barrier(**arguments)
    variable = tf.Variable(float(RANK))
    hvd.broadcast_variables([variable], 2, **arguments)
    assert float(variable) == 2
    sparse = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([RANK]), tf.constant([3, 1]))
    result = tf.convert_to_tensor(hvd.allreduce(sparse, **arguments))
    np.testing.assert_array_equal(result, [[0.5], [0], [0.5]])


def test_gradients_in_a_set(pair):
    if RANK == 1:
        return
    x = tf.Variable([1.0 + RANK])
    with tf.GradientTape() as tape:
        gathered = hvd.allgather(x, process_set=pair)
        loss = tf.reduce_sum(gathered * tf.constant([1.0, 10.0])) * (RANK + 1)
    # The losses' factors are 1 and 3.
    np.testing.assert_array_equal(tape.gradient(loss, x), [4 if RANK == 0 else 40])


def test_disagreement_is_an_error_on_all_ranks():
    with pytest.raises(ValueError, match=r"rank 1: hvd.add_process_set\(\[0, 1\]\)"):
        hvd.add_process_set([0, 1] if RANK == 1 else [0, 2])
    for ranks, message in (([], "at least one"), ([0, 0], "different"), ([3], "from 0 to 2")):
        with pytest.raises(ValueError, match=message):
            hvd.add_process_set(ranks)
    with pytest.raises(TypeError, match="list of ranks"):
        hvd.ProcessSet(3)


def test_a_removed_set_cannot_be_used_and_its_number_can():
    for ranks in ([0, 1], [1, 2], [0, 2]):
        process_set = hvd.add_process_set(ranks)
        assert process_set.process_set_id == 1
        if process_set.included():
            np.testing.assert_array_equal(
                hvd.allreduce([RANK], op=hvd.Sum, process_set=process_set), [sum(ranks)]
            )
        assert hvd.remove_process_set(process_set)
        assert not hvd.remove_process_set(process_set)
        with pytest.raises(ValueError, match="is not in use"):
            hvd.allreduce([1.0], process_set=process_set)
    assert not hvd.remove_process_set(hvd.global_process_set)


def test_join_in_a_set_concerns_that_set_only(pair):
    if RANK == 2:
        assert int(hvd.join(pair)) == 0
    elif RANK == 0:
        np.testing.assert_array_equal(hvd.allreduce([5.0], process_set=pair), [5])
        assert int(hvd.join(pair)) == 0
    np.testing.assert_array_equal(hvd.allreduce([1.0], op=hvd.Sum), [SIZE])
