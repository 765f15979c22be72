"""shard, for any rank and size, in one process."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras.keras.data import shard


def elements(dataset):
    return [tf.nest.map_structure(lambda t: t.numpy().tolist(), e) for e in dataset]


def parts(data, size, **kwargs):
    return [shard(data, rank, size, **kwargs) for rank in range(size)]


def unknown_length(dataset):
    return dataset.filter(lambda *element: True)


STRUCTURES = {
    "array": lambda a: a,
    "tuple": lambda a: (a, 10 * a),
    "one": lambda a: (a,),
    "dict": lambda a: {"x": a, "more": (a + 1, a.astype("float32"))},
}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_dataset(size, structure, known):
    whole = tf.data.Dataset.from_tensor_slices(STRUCTURES[structure](np.arange(23)))
    given = whole if known else unknown_length(whole)
    got = parts(given, size)
    rows = elements(whole)
    stop = 23 - 23 % size if size > 1 else 23
    assert [elements(part) for part in got] == [rows[rank:stop:size] for rank in range(size)]
    assert got[0].element_spec == whole.element_spec
    assert int(got[-1].cardinality()) == (23 // size if known else tf.data.UNKNOWN_CARDINALITY)
    uneven = parts(given, size, even=False)
    assert [elements(part) for part in uneven] == [rows[rank::size] for rank in range(size)]


def test_infinite_dataset():
    part = shard(tf.data.Dataset.range(5).repeat(), 1, 2)
    assert elements(part.take(4)) == [1, 3, 0, 2]


def test_batches_are_dealt_out_whole():
    batches = tf.data.Dataset.range(10).batch(2)
    assert elements(shard(batches, 0, 2)) == [[0, 1], [4, 5]]
    assert elements(shard(batches, 1, 2)) == [[2, 3], [6, 7]]


def test_ragged_elements_of_unknown_number():
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    dataset = unknown_length(tf.data.Dataset.from_tensor_slices(ragged))
    assert elements(shard(dataset, 1, 2)) == [[2, 3], [4]]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_arrays(size, structure):
    whole = STRUCTURES[structure](np.arange(46).reshape(23, 2))
    for even, stop in [(True, 23 - 23 % size), (False, 23)]:
        for rank in range(size):
            got = tf.nest.flatten(shard(whole, rank, size, even=even))
            for part, array in zip(got, tf.nest.flatten(whole), strict=True):
                np.testing.assert_array_equal(part, array[rank:stop:size])
                assert np.shares_memory(part, array)  # nothing is copied


def test_other_kinds_of_arrays():
    class Frame:  # as pandas has them
        shape = (5, 1)
        iloc = np.arange(5)

        def __getitem__(self, column):
            raise KeyError(column)

    data = {
        "tensor": tf.range(5),
        "ragged": tf.ragged.constant([[1], [2, 3], [], [4], [5]]),
        "frame": Frame(),
        "nothing": None,
        "list": [np.arange(5), None],
    }
    got = shard(data, 1, 2)
    assert got["tensor"].numpy().tolist() == [1, 3]
    assert got["ragged"].to_list() == [[2, 3], [4]]
    assert got["frame"].tolist() == [1, 3]
    assert got["nothing"] is None and got["list"][1] is None
    assert got["list"][0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (5, TypeError, "found a int"),
        ([1, 2, 3], TypeError, "found a int"),
        ("text", TypeError, "found a str"),
        (None, TypeError, "got NoneType"),
        (tf.sparse.from_dense([1, 0]), TypeError, "SparseTensor"),
        ((tf.data.Dataset.range(2), tf.data.Dataset.range(2)), TypeError, "Dataset.zip"),
        (tf.constant(1), ValueError, "scalar"),
        ((np.arange(3), np.arange(4)), ValueError, r"lengths \[3, 4\]"),
        (np.arange(1), ValueError, "1 elements cannot be divided evenly among 2 ranks"),
        (tf.data.Dataset.range(1), ValueError, "1 elements cannot be divided evenly among 2 ranks"),
    ],
)
def test_what_cannot_be_divided(data, error, message):
    with pytest.raises(error, match=message):
        shard(data, 0, 2)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_ranks_that_do_not_exist(rank, size):
    with pytest.raises(ValueError, match=f"rank={rank}, size={size}"):
        shard(np.arange(9), rank, size)


def test_shuffling_first_is_warned_of():
    tf.random.set_seed(None)  # another test may have set one
    with pytest.warns(UserWarning, match=r"Call shard\(\) before shuffle\(\)"):
        shard(tf.data.Dataset.range(7).shuffle(3).map(lambda x: x + 1), 0, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shard(tf.data.Dataset.range(7).shuffle(3, seed=1).batch(2), 0, 2)
        shard(tf.data.Dataset.range(7), 0, 2).shuffle(3)
