"""shard: the ranks' parts together are the data."""

import numpy as np
import pytest
import tensorflow as tf
from keras_cases import everywhere

import hvd_keras as hvd


@pytest.mark.parametrize("rest", ["no", "some"])
@pytest.mark.parametrize("kind", ["numpy", "dataset", "unknown"])
def test_parts(rest, kind):
    length = 8 * hvd.size() + (hvd.size() - 1 if rest == "some" else 0)
    array = np.arange(length)
    if kind == "numpy":
        whole = array
    else:
        whole = tf.data.Dataset.from_tensor_slices(array)
        whole = whole.filter(lambda x: True) if kind == "unknown" else whole
    even = everywhere([int(x) for x in hvd.shard(whole)])
    uneven = everywhere([int(x) for x in hvd.shard(whole, even=False)])
    assert {len(part) for part in even} == {length // hvd.size()}
    kept = length - length % hvd.size()
    assert sorted(sum(even, [])) == array[:kept].tolist()
    assert sorted(sum(uneven, [])) == array.tolist()
    assert max(map(len, uneven)) - min(map(len, uneven)) <= 1
    assert even[hvd.rank()][0] == hvd.rank()


def test_batches_of_all_ranks_are_those_of_one_process():
    whole = tf.data.Dataset.range(6 * hvd.size())
    mine = [batch.numpy() for batch in hvd.shard(whole).batch(2)]
    joined = [np.sort(np.concatenate(batches)) for batches in zip(*everywhere(mine), strict=True)]
    expected = [batch.numpy() for batch in whole.batch(2 * hvd.size())]
    np.testing.assert_array_equal(joined, expected)
