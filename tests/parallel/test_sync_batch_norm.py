"""SyncBatchNormalization against Keras's layer on the joined batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()

ROWS = [4, 4, 4]
UNEVEN = [2, 3, 5]


def data(rows):
    """All ranks' rows, far from 0, where a difference of sums of squares would go wrong."""
    parts = [np.random.default_rng(r).normal(100, 2 + r, (n, 6, 3)) for r, n in enumerate(rows)]
    return [part.astype("float32") for part in parts]


@pytest.mark.parametrize("rows", [ROWS, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("axis", "masked"), [(-1, False), (1, False), (-1, True)])
def test_outputs_and_moving_statistics(rows, axis, masked):
    parts = data(rows)
    masks = [np.random.default_rng(9 + r).random((n, 6)) < 0.6 for r, n in enumerate(rows)]
    arguments = [{"mask": mask} if masked else {} for mask in masks]
    ours, keras_layer = hvd.SyncBatchNormalization(axis=axis), keras.layers.BatchNormalization(axis)
    mine = ours(parts[RANK], training=True, **arguments[RANK])
    joined = {"mask": np.concatenate(masks)} if masked else {}
    whole = keras_layer(np.concatenate(parts), training=True, **joined)
    begin = sum(rows[:RANK])
    np.testing.assert_allclose(mine, whole[begin : begin + rows[RANK]], atol=2e-5)
    for a, b in zip(ours.weights, keras_layer.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours(parts[0]), keras_layer(parts[0]), rtol=1e-5, atol=1e-5)


def model_with(layer):
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), layer, keras.layers.Dense(1)]
    )


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
def test_training_equals_one_process_on_the_joined_batch(jit):
    parts = [(part[:, 0] - 100) / 10 for part in data(ROWS)]
    alone = model_with(keras.layers.BatchNormalization())
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    whole = np.concatenate(parts)
    alone.fit(whole, whole[:, :1], epochs=4, batch_size=len(whole), shuffle=False, verbose=0)
    if RANK == 0:
        model_with(keras.layers.BatchNormalization())  # its layers have other numbers from here on
    model = model_with(hvd.SyncBatchNormalization())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=jit)
    mine = parts[RANK]
    model.fit(mine, mine[:, :1], epochs=4, batch_size=len(mine), shuffle=False, verbose=0)
    for a, b in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-4)
    copies = hvd.allgather_object([w.numpy().tobytes() for w in model.weights])
    assert all(copy == copies[0] for copy in copies)


def test_fused_is_refused_and_the_layer_can_be_saved():
    with pytest.raises(ValueError, match="no fused form"):
        hvd.SyncBatchNormalization(fused=True)
    layer = hvd.SyncBatchNormalization(momentum=0.9)
    copy = keras.layers.deserialize(keras.layers.serialize(layer))
    assert type(copy) is hvd.SyncBatchNormalization and copy.momentum == 0.9
    assert tf.is_tensor(layer(tf.ones([2, 3])))  # inference needs no other rank
