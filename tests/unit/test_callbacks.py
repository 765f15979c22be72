"""The callbacks in a world of one process."""

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras import world
from hvd_keras.keras import _peers


@pytest.fixture(scope="module", autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


def all_callbacks(folder):
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.25, 1),
        hvd.callbacks.LearningRateScheduleCallback(0.25, 0.5, start_epoch=1),
        hvd.callbacks.RankZeroModelCheckpoint(folder / "model.keras"),
        hvd.callbacks.RankZero(keras.callbacks.CSVLogger(str(folder / "log.csv"))),
    ]


def test_one_process_trains_as_without_them(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def train(optimizer, callbacks):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.layers.Dense(2),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer, "mse", metrics=["mae"])
        history = model.fit(
            x,
            x[:, :1],
            batch_size=2,
            epochs=2,
            validation_data=(x, x[:, :1]),
            callbacks=callbacks,
            verbose=0,
            shuffle=False,
        )
        return model, history.history

    rates = keras.callbacks.LearningRateScheduler(lambda epoch: [0.25, 0.25][epoch])
    with_all, logs = train(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.25)),
        [*all_callbacks(tmp_path)[:3], *all_callbacks(tmp_path)[4:]],
    )
    without, expected = train(keras.optimizers.SGD(0.25), [rates])
    for a, b in zip(with_all.get_weights(), without.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert {key: logs[key] for key in expected} == expected
    assert (tmp_path / "model.keras").exists() and (tmp_path / "log.csv").exists()


def test_those_that_run_at_the_end_of_a_batch_are_told_to_keras(tmp_path):
    """Keras ends batches in a thread of its own unless a callback overrides one of these."""
    base = keras.callbacks.Callback
    for callback in all_callbacks(tmp_path):
        overrides = type(callback).on_train_batch_end is not base.on_train_batch_end
        assert overrides == isinstance(callback, keras.callbacks.ModelCheckpoint)


def test_arguments_of_horovod():
    """Names, order and defaults as its users know them."""
    import inspect

    expected = {
        "BroadcastGlobalVariablesCallback": "(root_rank, device='', local_variables=None)",
        "MetricAverageCallback": "(device='')",
        "LearningRateScheduleCallback": (
            "(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
            "momentum_correction=True, steps_per_epoch=None)"
        ),
        "LearningRateWarmupCallback": (
            "(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, "
            "verbose=0)"
        ),
    }
    for name, text in expected.items():
        signature = inspect.signature(getattr(hvd.callbacks, name))
        bare = signature.replace(
            return_annotation=signature.empty,
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        )
        assert str(bare) == text


@pytest.mark.parametrize(
    "make",
    [
        lambda: hvd.callbacks.RankZero(keras.callbacks.CSVLogger("x.csv")),
        lambda: hvd.callbacks.RankZeroModelCheckpoint("x.keras"),
        lambda: fit(hvd.callbacks.BroadcastGlobalVariablesCallback(0)),
        lambda: fit(hvd.callbacks.MetricAverageCallback()),
        lambda: fit(hvd.callbacks.LearningRateWarmupCallback(0.1)),
    ],
    ids=["RankZero", "Checkpoint", "Broadcast", "MetricAverage", "Warmup"],
)
def test_without_init(monkeypatch, make):
    monkeypatch.setattr(world, "_settings", None)
    with pytest.raises(hvd.NotInitializedError, match=r"hvd\.init\(\) has not been called"):
        make()


def fit(callback):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[callback])


def test_initial_lr_is_needed():
    with pytest.raises(ValueError, match="initial_lr is missing"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)


def test_model_that_is_not_built_in_a_loop_of_ones_own():
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(RuntimeError, match="build it first"):
        callback.on_train_begin()


def test_step_that_was_never_run_does_not_stay_wrapped():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise KeyError

    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    x = np.ones((2, 1))
    for _ in range(2):
        with pytest.raises(KeyError):
            model.fit(x, x, verbose=0, callbacks=[callback, Fail()])
    model.fit(x, x, verbose=0, callbacks=[callback])
    assert not hasattr(model.train_function, "run_step")


def test_evaluate_before_anything_is_built():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    callbacks = [hvd.callbacks.MetricAverageCallback()]
    assert len(model.evaluate(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=callbacks))


def test_values_by_rank():
    assert _peers.by_rank([4, 5, 4]) == "4 on ranks 0, 2; 5 on rank 1"
