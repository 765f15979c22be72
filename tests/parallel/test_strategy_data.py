"""Data sets of hvd.Strategy: who gets which rows."""

import numpy as np
import pytest
import tensorflow as tf
from keras_cases import everywhere

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STRATEGY = hvd.Strategy()
Policy = tf.data.experimental.AutoShardPolicy

pytestmark = pytest.mark.ranks(2)


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def batches(dataset):
    """What every rank gets of a data set of numbers: a list of lists for each rank."""
    return everywhere([batch.numpy().tolist() for batch in dataset])


@pytest.mark.parametrize("policy", [None, Policy.AUTO, Policy.DATA])
@pytest.mark.ranks(3)
def test_every_batch_is_divided(policy):
    """In the order of the ranks, as evenly as can be."""
    dataset = tf.data.Dataset.range(16).batch(7)
    if policy is not None:
        dataset = with_policy(dataset, policy)
    distributed = STRATEGY.experimental_distribute_dataset(dataset)
    assert isinstance(distributed, tf.distribute.DistributedDataset)
    assert distributed.cardinality == len(distributed) == 3
    assert batches(distributed) == [
        [[0, 1, 2], [7, 8, 9], [14]],
        [[3, 4], [10, 11], [15]],
        [[5, 6], [12, 13], []],
    ]
    assert batches(distributed)[0][0] == [0, 1, 2]  # once more


def test_shapes_are_known_where_they_can_be():
    even = tf.data.Dataset.range(4 * SIZE).batch(2 * SIZE, drop_remainder=True)
    assert STRATEGY.experimental_distribute_dataset(even).element_spec.shape == [2]
    other = tf.data.Dataset.range(4 * SIZE).batch(2 * SIZE)
    assert STRATEGY.experimental_distribute_dataset(other).element_spec.shape == [None]


def test_structures():
    ragged = tf.ragged.constant([[i] * i for i in range(2 * SIZE)])
    sparse = tf.sparse.from_dense(tf.reshape(tf.range(4 * SIZE), [2 * SIZE, 2]))
    element = {"dense": tf.range(2 * SIZE), "ragged": ragged, "sparse": sparse}
    dataset = tf.data.Dataset.from_tensors((element, (tf.constant(7),)))
    ((part, (scalar,)),) = list(STRATEGY.experimental_distribute_dataset(dataset))
    rows = [2 * RANK, 2 * RANK + 1]
    assert part["dense"].numpy().tolist() == rows and scalar == 7
    assert part["ragged"].to_list() == [[i] * i for i in rows]
    dense = tf.sparse.to_dense(part["sparse"])
    assert dense.numpy().tolist() == [[2 * i, 2 * i + 1] for i in rows]
    single = tf.data.Dataset.from_tensors((tf.range(2 * SIZE),))
    ((only,),) = list(STRATEGY.experimental_distribute_dataset(single))
    assert only.numpy().tolist() == rows


def test_no_sharding():
    """Each rank reads everything, in batches of its own size."""
    dataset = with_policy(tf.data.Dataset.range(5).batch(4), Policy.OFF)
    distributed = STRATEGY.experimental_distribute_dataset(dataset)
    assert batches(distributed) == [[[0, 1], [2, 3], [4]]] * SIZE


def test_by_files(tmp_path):
    files = []
    for number in range(2 * SIZE):
        files.append(str(tmp_path / f"{number}.txt"))
        with open(files[-1], "w") as file:
            file.writelines(f"{number}{line}\n" for line in range(4))
    dataset = tf.data.TextLineDataset(files).batch(4)
    distributed = STRATEGY.experimental_distribute_dataset(with_policy(dataset, Policy.FILE))
    by_rank = batches(distributed)
    assert [len(batch) for batch in by_rank[RANK]] == [2] * 4
    read = [[int(line) // 10 for batch in mine for line in batch] for mine in by_rank]
    assert [sorted(set(numbers)) for numbers in read] == [[0, 2], [1, 3]]
    assert sorted(sum(read, [])) == sorted([number for number in range(2 * SIZE)] * 4)


def test_by_a_hint():
    hint = tf.data.experimental.SHARD_HINT
    dataset = tf.data.Dataset.range(8).shard(hint, hint).batch(2)
    distributed = STRATEGY.experimental_distribute_dataset(with_policy(dataset, Policy.HINT))
    assert batches(distributed) == [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]


def test_from_a_function():
    contexts = []

    def make(context):
        contexts.append(context)
        pipelines, own = context.num_input_pipelines, context.input_pipeline_id
        part = tf.data.Dataset.range(8).shard(pipelines, own)
        return part.batch(context.get_per_replica_batch_size(4))

    distributed = STRATEGY.distribute_datasets_from_function(make)
    assert batches(distributed) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    (context,) = contexts
    assert context.num_replicas_in_sync == context.num_input_pipelines == SIZE
    assert context.input_pipeline_id == RANK
    with pytest.raises(ValueError, match="not divisible"):
        context.get_per_replica_batch_size(2 * SIZE + 1)
    # Given to fit, or once more, it is not divided again.
    assert STRATEGY.experimental_distribute_dataset(distributed) is distributed


def test_what_is_no_data_set_of_batches_is_refused():
    with pytest.raises(ValueError, match=r"no batches.*\.batch\(<examples of all ranks"):
        STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(4))
    with pytest.raises(TypeError, match=r"takes a tf\.data\.Dataset, not a list"):
        STRATEGY.experimental_distribute_dataset([1, 2])
    with pytest.raises(TypeError, match=r"returned a NoneType; expected a tf\.data\.Dataset"):
        STRATEGY.distribute_datasets_from_function(lambda context: None)
    options = tf.distribute.InputOptions(
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
    )
    with pytest.raises(NotImplementedError, match="leave out"):
        STRATEGY.distribute_datasets_from_function(lambda context: None, options)


@pytest.mark.parametrize("seeds", ["none", "different"])
def test_a_shuffle_that_differs_between_ranks_is_told(seeds):
    tf.random.set_seed(None if seeds == "none" else 1 + RANK)
    dataset = tf.data.Dataset.range(8).shuffle(8, seed=None if seeds == "none" else 1)
    if not hasattr(dataset, "_seed"):
        pytest.skip("this TensorFlow does not tell the seed")
    with pytest.warns(UserWarning, match=r"without a seed, or with.*shuffle\(\.\.\., seed="):
        STRATEGY.experimental_distribute_dataset(dataset.batch(4))


@pytest.mark.parametrize("seed", [None, 1])
def test_no_warning_with_seeds(seed, recwarn):
    tf.random.set_seed(3 if seed is None else None)
    dataset = tf.data.Dataset.range(8).shuffle(8, seed=seed).batch(4)
    read = batches(STRATEGY.experimental_distribute_dataset(dataset))
    assert not [w for w in recwarn if "seed" in str(w.message)]
    assert sorted(np.ravel(read).tolist()) == list(range(8))
