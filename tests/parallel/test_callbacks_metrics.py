"""MetricAverageCallback: uneven parts, against one process that has all the data."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import assert_same_on_all_ranks, everywhere, joined_data, mlp

import hvd_keras as hvd

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data")
several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="needs two ranks")


def uneven_part(*arrays):
    """Rank r gets 2 r + 1 parts of size ** 2."""
    n = hvd.size()
    parts = [np.array_split(array, n * n) for array in arrays]
    mine = slice(hvd.rank() ** 2, (hvd.rank() + 1) ** 2)
    return tuple(np.concatenate(array[mine]) for array in parts)


def classes(x):
    return (x.sum(axis=1) > 0).astype("int64") + (x[:, 0] > 1)


class Later(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs, self.end = [], None

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))

    def on_train_end(self, logs=None):
        self.end = dict(logs)


def fit(model, x, y, callback=None, before=(), validation=True, **kwargs):
    """Trains with a rate of 0, so that all epochs and one process see the same model."""
    later = Later()
    callbacks = [*before, callback or hvd.callbacks.MetricAverageCallback(), later]
    history = model.fit(
        x,
        y,
        batch_size=5,
        epochs=2,
        verbose=0,
        callbacks=callbacks,
        validation_data=uneven_part(*validation_data()) if validation else None,
        **kwargs,
    )
    return {key: values[-1] for key, values in history.history.items()}, later


def validation_data():
    x, _ = joined_data(9, 3, seed=5)
    return x, classes(x)


def classifier(metrics, **kwargs):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="softmax")])
    model.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(),
        metrics=metrics,
        **kwargs,
    )
    return model


def assert_close(logs, expected):
    assert set(logs) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(logs[key], value, rtol=1e-5, err_msg=key)


class OneHotAUC(keras.metrics.AUC):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(
            tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), 4),
            y_pred,
            sample_weight=sample_weight,
        )


def test_uneven_parts_give_the_metrics_of_one_process():
    def metrics():
        return [
            "accuracy",
            OneHotAUC(name="auc"),
            keras.metrics.SparseTopKCategoricalAccuracy(2, name="top"),
            keras.metrics.MeanIoU(4, sparse_y_pred=False, name="iou"),
        ]

    x, _ = joined_data(10, 4)
    y = classes(x)
    one = classifier(metrics())
    expected = dict(one.evaluate(x, y, verbose=0, return_dict=True))
    for key, value in one.evaluate(*validation_data(), verbose=0, return_dict=True).items():
        expected[f"val_{key}"] = value

    logs, later = fit(classifier(metrics()), *uneven_part(x, y))
    assert_close(logs, expected)
    assert later.epochs[-1] == logs == later.end
    assert_same_on_all_ranks([logs[key] for key in sorted(logs)])


def test_sample_weights_and_several_outputs():
    x, y = joined_data(10, 4)
    weights = np.linspace(0.1, 2, len(x)).astype("float32")

    def model():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        a, b = keras.layers.Dense(1, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)
        model = keras.Model(inputs, [a, b])
        model.compile(
            keras.optimizers.SGD(0.0),
            ["mse", "mae"],
            loss_weights=[1.0, 0.5],
            metrics=[[keras.metrics.RootMeanSquaredError()], [keras.metrics.R2Score()]],
            weighted_metrics=[["mae"], ["mse"]],
        )
        return model

    expected = model().evaluate(
        x, [y, y], sample_weight=[weights, weights], batch_size=len(x), verbose=0, return_dict=True
    )
    my_x, my_y, my_weights = uneven_part(x, y, weights)
    logs, _ = fit(
        model(), my_x, [my_y, my_y], sample_weight=[my_weights, my_weights], validation=False
    )
    # Keras weights the loss of a batch by its length, not by its sample weights, so batches show.
    for key in [key for key in logs if key.endswith("loss")]:
        del logs[key], expected[key]
    assert len(logs) == 4
    assert_close(logs, expected)


def test_metric_objects_keep_their_own_state():
    x, y = joined_data(4, 4)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    fit(model, *uneven_part(x, y), validation=False)
    mine = model.get_metrics_result()["mae"]
    expected = np.abs(model(uneven_part(x, y)[0]) - uneven_part(x, y)[1]).mean()
    np.testing.assert_allclose(mine, expected, rtol=1e-5)


class Keeps(keras.metrics.Metric):
    """State that is reduced as `aggregation` says."""

    def __init__(self, aggregation):
        super().__init__(name=f"keeps_{aggregation}")
        self.kept = self.add_variable((2,), "zeros", "int32", aggregation=aggregation)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.assign(tf.constant([4, 8]) * (hvd.rank() + 1))

    def result(self):
        return tf.cast(self.kept, tf.float32)


def test_state_is_reduced_by_its_declared_aggregation():
    x, y = joined_data(4, 4)
    model = mlp()
    model.compile(
        keras.optimizers.SGD(0.0),
        "mse",
        metrics=[Keeps("sum"), Keeps("mean"), Keeps("only_first_replica")],
    )
    logs, _ = fit(model, *uneven_part(x, y), validation=False)
    n = hvd.size()
    total = n * (n + 1) // 2
    np.testing.assert_array_equal(logs["keeps_sum"], [4 * total, 8 * total])
    np.testing.assert_array_equal(logs["keeps_mean"], [4 * total // n, 8 * total // n])
    np.testing.assert_array_equal(logs["keeps_only_first_replica"], [4, 8])


class Logging(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs.update(
            mine=4.0 * hvd.rank(),
            same=0.1,
            text=f"rank {hvd.rank()}",
            vector=np.array([1.0, hvd.rank()]),
        )


def test_other_values_are_averaged():
    x, y = joined_data(4, 4)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    later = Later()
    model.fit(
        *uneven_part(x, y),
        verbose=0,
        callbacks=[Logging(), hvd.callbacks.MetricAverageCallback(), later],
    )
    logs = later.epochs[0]
    mean = (hvd.size() - 1) / 2
    assert logs["mine"] == 4 * mean
    assert logs["same"] == 0.1
    assert logs["text"] == f"rank {hvd.rank()}"
    np.testing.assert_array_equal(logs["vector"], [1.0, mean])


class Custom(keras.Model):
    """Returns a metric of its own and a number that no metric knows."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.dense = keras.layers.Dense(1)
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def train_step(self, data):
        x, y = data
        self.error.update_state(y, self.dense(x))
        return {"error": self.error.result(), "rank": tf.constant(float(hvd.rank()))}


def test_train_step_of_ones_own():
    x, y = joined_data(4, 4)
    model = Custom()
    model.compile()
    logs, _ = fit(model, *uneven_part(x, y), validation=False)
    expected = np.abs(model.dense(x) - y).mean()
    assert_close(logs, {"error": expected, "rank": (hvd.size() - 1) / 2})


def test_validation_in_some_epochs_only():
    x, y = joined_data(4, 4)
    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    later = Later()
    model.fit(
        *uneven_part(x, y),
        validation_data=uneven_part(x, y),
        validation_freq=2,
        epochs=4,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback(), later],
    )
    assert ["val_loss" in logs for logs in later.epochs] == [False, True, False, True]
    expected = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose([logs["loss"] for logs in later.epochs], expected, rtol=1e-5)
    assert_same_on_all_ranks([sorted(logs.items()) for logs in later.epochs[:1]])


@several_ranks
def test_evaluate_in_an_earlier_callback_is_told():
    x, y = joined_data(4, 4)

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(x[:3], y[:3], verbose=0)

    model = mlp()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    mine = uneven_part(x, y)
    own = mlp()
    own.compile(loss="mse")
    expected = np.mean(everywhere(own.evaluate(*mine, verbose=0)))
    with pytest.warns(UserWarning, match="Put MetricAverageCallback first"):
        logs, _ = fit(model, *mine, before=[Evaluate()], validation=False)
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-5)


@several_ranks
class TestMismatch:
    def message(self, model, validation=False, **kwargs):
        x, y = joined_data(4, 4)
        with pytest.raises(ValueError) as caught:
            fit(model, *uneven_part(x, classes(x)), validation=validation, **kwargs)
        return str(caught.value)

    def test_metrics(self):
        message = self.message(classifier(["accuracy"] if hvd.rank() == 0 else []))
        assert "accuracy, loss on rank 0; loss on rank" in message

    def test_validation_on_one_rank(self):
        message = self.message(classifier([]), validation=hvd.rank() == 0)
        assert "loss, val_loss on rank 0; loss on rank" in message

    def test_epochs(self):
        message = self.message(classifier([]), initial_epoch=min(hvd.rank(), 1))
        assert "different epochs: 0 on rank 0; 1 on rank" in message

    def test_state(self):
        thresholds = 10 if hvd.rank() == 0 else 20
        message = self.message(classifier([OneHotAUC(thresholds, name="auc")]))
        assert "differs" in message and "(10,)" in message and "(20,)" in message

    def test_no_rule(self):
        message = self.message(classifier([Keeps("none")]))
        assert "aggregation='none'" in message
