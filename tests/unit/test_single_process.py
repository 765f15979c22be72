"""A world of one process: no launcher, right values, and gradients that cost nothing."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
import hvd_keras.keras
import hvd_keras.tensorflow
from hvd_keras import _library
from hvd_keras.gradients import Reduction, reduce_gradients

pytestmark = pytest.mark.skipif("__import__('os').environ.get('HVD_SIZE', '1') != '1'")


@pytest.fixture(autouse=True, scope="module")
def world():
    hvd.init()
    hvd.init()  # does nothing


def test_topology():
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)


def test_shutdown_and_init_again():
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(hvd.NotInitializedError):
        hvd.rank()
    hvd.shutdown()
    hvd.init()
    assert hvd.rank() == 0


def test_init_arguments():
    hvd.shutdown()
    alone = hvd.ProcessSet([0])
    hvd.init(comm=None, process_sets=[alone])
    assert alone.process_set_id == 1 and alone.included() and alone.rank() == 0
    hvd.init(process_sets=[])  # does nothing
    np.testing.assert_array_equal(hvd.allreduce([2.0], process_set=alone), [2])
    hvd.shutdown()
    assert alone.process_set_id is None
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match="is not in use"):
        hvd.allreduce([2.0], process_set=alone)


def test_collectives():
    np.testing.assert_array_equal(
        hvd.allreduce([1.0, 2.0], op=hvd.Sum, prescale_factor=2.0), [2, 4]
    )
    np.testing.assert_array_equal(hvd.allgather([[1], [2]]), [[1], [2]])
    np.testing.assert_array_equal(hvd.broadcast([3], 0), [3])
    assert hvd.allgather_object("x") == ["x"] and hvd.broadcast_object("x") == "x"
    hvd.barrier()


def test_arguments_are_checked_all_the_same():
    with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank 1 does not exist"):
        hvd.broadcast([1.0], 1)
    with pytest.raises(TypeError):
        hvd.allreduce(["text"])
    with pytest.raises(ValueError):
        hvd.broadcast_object(1, root_rank=1)


@pytest.mark.parametrize(
    "reduction",
    [
        Reduction(),
        Reduction(op=hvd.Sum),
        Reduction(gradient_predivide_factor=4.0),
        Reduction(compression=hvd.Compression.fp16),
    ],
)
def test_gradients_pass_through(reduction):
    before = _library.core.stats()["collectives"]
    grads = [tf.constant([0.1]), None, tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))]
    reduced = reduce_gradients(grads, [tf.Variable([0.0])] * 3, reduction)
    assert all(a is b for a, b in zip(reduced, grads, strict=True))
    assert _library.core.stats()["collectives"] == before


def test_sparse_as_dense_is_done_all_the_same():
    slices = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([1, 1]), tf.constant([3, 1]))
    (dense,) = reduce_gradients([slices], [tf.Variable([[0.0]])], Reduction(sparse_as_dense=True))
    np.testing.assert_array_equal(dense, [[0], [2], [0]])


def test_as_many_gradients_as_variables():
    with pytest.raises(ValueError, match="1 gradients were given for 2 variables"):
        reduce_gradients([None], [tf.Variable(1.0), tf.Variable(1.0)])


def test_fit_and_tape():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    history = model.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_seeds_and_settings_are_left_alone():
    tf.random.set_seed(1)
    a = tf.random.normal([3]).numpy()
    tf.random.set_seed(1)
    hvd.init()
    np.testing.assert_array_equal(tf.random.normal([3]), a)


# The surface: names and argument order are Horovod's, where a name is there at all.

SIGNATURES = {
    "tensorflow.allreduce": "tensor average device_dense device_sparse compression op "
    "prescale_factor postscale_factor name process_set ignore_name_scope",
    "tensorflow.grouped_allreduce": "tensors average device_dense device_sparse compression op "
    "prescale_factor postscale_factor process_set ignore_name_scope name",
    "tensorflow.allgather": "tensor name ignore_name_scope process_set",
    "tensorflow.broadcast": "tensor root_rank name ignore_name_scope process_set",
    "tensorflow.broadcast_variables": "variables root_rank process_set inplace",
    "tensorflow.broadcast_object": "obj root_rank session name process_set",
    "tensorflow.allgather_object": "obj session name process_set",
    "tensorflow.DistributedGradientTape": "gradtape device_dense device_sparse compression "
    "sparse_as_dense op gradient_predivide_factor num_groups groups process_set "
    "scale_local_gradients",
    "tensorflow.DistributedOptimizer": "optimizer name use_locking device_dense device_sparse "
    "compression sparse_as_dense backward_passes_per_step op gradient_predivide_factor "
    "average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    "keras.DistributedOptimizer": "optimizer name device_dense device_sparse compression "
    "sparse_as_dense gradient_predivide_factor op backward_passes_per_step "
    "average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    "keras.PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression "
    "sparse_as_dense gradient_predivide_factor op backward_passes_per_step "
    "average_aggregated_gradients groups process_set local_layers scale_local_gradients",
    "keras.allreduce": "value name average prescale_factor postscale_factor op compression",
    "keras.allgather": "value name",
    "keras.broadcast": "value root_rank name",
    "tensorflow.reducescatter": "tensor device_dense compression op name process_set "
    "ignore_name_scope prescale_factor postscale_factor",
    "tensorflow.grouped_reducescatter": "tensors device_dense compression op process_set "
    "prescale_factor postscale_factor",
    "tensorflow.grouped_allgather": "tensors name ignore_name_scope process_set",
    "tensorflow.alltoall": "tensor splits name ignore_name_scope process_set",
    "tensorflow.broadcast_object_fn": "root_rank session name process_set",
    "tensorflow.broadcast_": "variables root_rank name process_set",
    "tensorflow.size_op": "process_set_id name",
    "tensorflow.add_process_set": "process_set",
    "keras.reducescatter": "value name op",
    "tensorflow.init": "comm process_sets",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    module, function = name.split(".")
    target = getattr(getattr(hvd_keras, module), function)
    positional = [
        p.name
        for p in inspect.signature(target).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert positional == SIGNATURES[name].split()


@pytest.mark.parametrize("module", ["", ".keras", ".tensorflow", ".tensorflow.keras"])
def test_all_names_exist(module):
    namespace = __import__(f"hvd_keras{module}", fromlist=["_"])
    for name in namespace.__all__:
        assert getattr(namespace, name) is not None


def test_callbacks_can_be_imported_as_horovods():
    from hvd_keras.keras.callbacks import BroadcastGlobalVariablesCallback as ours
    from hvd_keras.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback as theirs

    assert ours is theirs is hvd.callbacks.BroadcastGlobalVariablesCallback
