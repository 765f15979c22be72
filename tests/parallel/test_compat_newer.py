"""Alltoall, reducescatter, join, process sets and topology operations under the alias."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras import compat

compat.install()

import horovod.tensorflow as hvd  # noqa: E402
import horovod.tensorflow.keras as hvd_keras_names  # noqa: E402

pytestmark = pytest.mark.ranks(2, group="compat")

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = np.arange(SIZE)
TOTAL = int(RANKS.sum())


def test_alltoall():
    x = tf.range(SIZE) + 10 * RANK
    np.testing.assert_array_equal(hvd.alltoall(x), RANKS * 10 + RANK)
    splits = tf.range(SIZE, dtype=tf.int32)  # r rows for rank r
    received, counts = hvd.alltoall(tf.fill([int(sum(range(SIZE))), 1], RANK), splits)
    np.testing.assert_array_equal(counts, np.full(SIZE, RANK))
    np.testing.assert_array_equal(received, np.repeat(RANKS, RANK)[:, None])


def test_reducescatter():
    x = tf.range(2 * SIZE, dtype=tf.float32)
    mine = np.arange(2 * RANK, 2 * RANK + 2)
    np.testing.assert_allclose(hvd.reducescatter(x), mine)
    np.testing.assert_allclose(hvd.reducescatter(x, op=hvd.Sum), mine * SIZE)
    a, b = hvd.grouped_reducescatter([x, 2 * x], op=hvd.Sum)
    np.testing.assert_allclose(a, mine * SIZE)
    np.testing.assert_allclose(b, 2 * mine * SIZE)
    np.testing.assert_allclose(hvd_keras_names.reducescatter(x, op=hvd.Sum), mine * SIZE)


def test_grouped_allgather():
    a, b = hvd.grouped_allgather([tf.constant([RANK]), tf.fill([RANK, 1], 2.0)], name="pair")
    np.testing.assert_array_equal(a, RANKS)
    assert b.shape == (TOTAL, 1)


def test_broadcast_in_place():
    v = tf.Variable([float(RANK)])
    hvd.broadcast_([v], SIZE - 1)
    np.testing.assert_array_equal(v, [SIZE - 1.0])


def test_topology_operations():
    assert hvd.size_op().numpy() == SIZE and hvd.rank_op().numpy() == RANK
    assert hvd.local_rank_op().numpy() == RANK and hvd.local_size_op(name="n").numpy() == SIZE
    assert hvd.process_set_included_op().numpy() == 1


def test_join():
    if RANK == 0:
        got = hvd.allreduce(tf.constant([6.0]), op=hvd.Sum, name="after one has joined")
        np.testing.assert_allclose(got, [6.0])
    last = int(hvd.join())
    assert last in range(SIZE)
    assert hvd.allgather_object(last) == [last] * SIZE


def test_process_sets():
    assert hvd.global_process_set.ranks == list(range(SIZE))
    alone = hvd.add_process_set(hvd.ProcessSet([SIZE - 1]))
    assert alone.ranks == [SIZE - 1] and alone.included() is (RANK == SIZE - 1)
    if alone.included():
        got = hvd.allreduce(tf.constant([RANK + 1.0]), op=hvd.Sum, process_set=alone)
        np.testing.assert_allclose(got, [RANK + 1.0])
    hvd.allgather_object(0)
    assert hvd.remove_process_set(alone) is True


def test_adasum_of_equal_vectors():
    x = tf.constant([1.0, 2.0])
    np.testing.assert_allclose(hvd.allreduce(x, op=hvd.Adasum), x, rtol=1e-5)
