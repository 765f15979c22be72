"""evaluate, predict, and stopping together, on three ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(3)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def model(optimizer="sgd"):
    keras.utils.set_random_seed(5)
    result = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    result.compile(
        optimizer, "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]
    )
    return result


def data(rows):
    x = np.random.default_rng(1).normal(size=(rows, 4)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0.3).astype("float32")


@pytest.mark.parametrize("rows", [30, 31, 40])
def test_evaluate_equals_one_process(rows):
    x, y = data(rows)
    expected = model().evaluate(x, y, batch_size=7, return_dict=True, verbose=0)
    mine = hvd.shard((x, y), even=False)
    result = hvd.evaluate(model(), *mine, batch_size=4)
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5, err_msg=name)
    assert hvd.allgather_object(result) == [result] * SIZE


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_predict_keeps_the_order(rows):
    x, _ = data(rows)
    one = model()
    result = hvd.predict(one, x, batch_size=2)
    np.testing.assert_allclose(result, one.predict(x, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("rows", [5, 12, 13])
def test_predict_of_a_dataset(rows):
    x, y = data(rows)
    one = model()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    np.testing.assert_allclose(hvd.predict(one, dataset), one.predict(x, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("kind", ["rows", "values", "batches"])
def test_predict_of_other_data_on_each_rank(kind):
    x = np.full((6, 4), 1.0, "float32")
    part = {
        "rows": lambda: hvd.shard(x[:4], even=False),
        "values": lambda: x + hvd.rank(),
        "batches": lambda: tf.data.Dataset.from_tensor_slices(x[hvd.rank() :]).batch(1),
    }
    found = {
        "rows": "float32.2, 4. on rank 0; float32.1, 4. on ranks 1, 2",
        "values": "float32.6, 4. of other values",
        "batches": "6 batches on rank 0; 5 batches on rank 1; 4 batches on rank 2",
    }
    with pytest.raises(ValueError, match=f"the same on all ranks, .* found {found[kind]}"):
        hvd.predict(model(), part[kind]())


def test_predict_of_nothing():
    with pytest.raises(ValueError, match="x is empty"):
        hvd.predict(model(), np.zeros((0, 4)))


class StopOnRank(keras.callbacks.Callback):
    def __init__(self, rank, epoch):
        super().__init__()
        self.rank, self.epoch = rank, epoch

    def on_epoch_end(self, epoch, logs=None):
        if self.rank == RANK and epoch == self.epoch:
            self.model.stop_training = True


@pytest.mark.parametrize("rank", [0, 2])
def test_one_rank_stops_all(rank):
    x, y = hvd.shard(data(30))
    one = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    history = one.fit(x, y, epochs=5, verbose=0, callbacks=[StopOnRank(rank, 1)])
    assert len(history.epoch) == 2
    assert one.stop_training


def test_early_stopping_on_values_that_differ():
    # Without agreement rank 0 would stop after two epochs and the others wait for it.
    x, y = hvd.shard(data(30))
    one = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0 if RANK == 0 else 0.01)))
    stop = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10 if RANK == 0 else 0)
    epochs = len(one.fit(x, y, epochs=6, verbose=0, callbacks=[stop]).epoch)
    assert hvd.allgather_object(epochs) == [2] * SIZE


def test_a_model_that_is_not_distributed_is_left_alone():
    x, y = data(12)
    epochs = 1 + RANK
    assert len(model().fit(x, y, epochs=epochs, verbose=0).epoch) == epochs
