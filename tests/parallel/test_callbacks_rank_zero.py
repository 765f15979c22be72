"""RankZero and RankZeroModelCheckpoint: rank 0 acts, the others do not."""

import os

import keras
import numpy as np
import pytest
from keras_cases import assert_same_on_all_ranks, everywhere, joined_data, mlp

import hvd_keras as hvd

IS_ZERO = hvd.rank() == 0
HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]


def fit(callbacks, model=None, **kwargs):
    model = model or mlp()
    if not model.compiled:
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse", metrics=["mae"])
    x, y = hvd.shard(joined_data(4, 2))
    options = {"batch_size": 2, "verbose": 0, "validation_data": (x, y)} | kwargs
    model.fit(x, y, callbacks=callbacks, **options)
    return model


class Everything(keras.callbacks.Callback):
    """Counts the calls of each method."""

    def __init__(self):
        super().__init__()
        self.calls = dict.fromkeys([*HOOKS, "set_model", "set_params"], 0)

    def set_model(self, model):
        super().set_model(model)
        self.calls["set_model"] += 1

    def set_params(self, params):
        super().set_params(params)
        self.calls["set_params"] += 1


def _counting(hook):
    def call(self, *args, **kwargs):
        self.calls[hook] += 1

    return call


for _hook in HOOKS:
    setattr(Everything, _hook, _counting(_hook))


def test_every_hook_is_called_on_rank_zero_only():
    plain, wrapped = Everything(), hvd.callbacks.RankZero(Everything())
    model = fit([plain, wrapped])
    model.predict(joined_data(1, 2)[0], verbose=0, callbacks=[plain, wrapped])
    assert plain.calls["on_train_batch_end"] == 4 and plain.calls["on_predict_batch_end"] == 1
    assert wrapped.calls == (plain.calls if IS_ZERO else dict.fromkeys(plain.calls, 0))


def test_hooks_that_the_callback_lacks_stay_default():
    wrapped = hvd.callbacks.RankZero(keras.callbacks.LambdaCallback(on_epoch_end=print))
    default = keras.callbacks.Callback()
    for hook in HOOKS:
        is_default = (
            getattr(wrapped, hook).__func__ is getattr(default, hook).__func__
            if hasattr(getattr(wrapped, hook), "__func__")
            else False
        )
        assert is_default == (hook != "on_epoch_end" or not IS_ZERO), hook


def test_old_names_of_batch_hooks():
    class Old(keras.callbacks.Callback):
        count = 0

        def on_batch_end(self, batch, logs=None):
            self.count += 1

    wrapped = hvd.callbacks.RankZero(Old())
    fit([wrapped])
    assert wrapped.count == (4 if IS_ZERO else 0)


def test_csv_logger(shared_tmp_path):
    logger = keras.callbacks.CSVLogger(str(shared_tmp_path / f"{hvd.rank()}.csv"))
    fit([hvd.callbacks.MetricAverageCallback(), hvd.callbacks.RankZero(logger)])
    hvd.barrier("test.csv")
    assert os.listdir(shared_tmp_path) == ["0.csv"]


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping(),
        keras.callbacks.ReduceLROnPlateau(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LearningRateScheduler(lambda e: 0.1),
        keras.callbacks.BackupAndRestore("x"),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(1),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_all_ranks_need_are_refused(callback):
    with pytest.raises(ValueError, match="Use it on all ranks"):
        hvd.callbacks.RankZero(callback)


def test_no_callback():
    with pytest.raises(TypeError, match=r"keras\.callbacks\.Callback"):
        hvd.callbacks.RankZero(keras.callbacks.CSVLogger)


def test_stopping_from_rank_zero_is_an_error_there():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    model = mlp()
    model.compile("sgd", "mse")  # no collective in its steps, so the other ranks do not wait
    if IS_ZERO:
        with pytest.raises(RuntimeError, match="on rank 0 only"):
            fit([hvd.callbacks.RankZero(Stop())], model)
    else:
        fit([hvd.callbacks.RankZero(Stop())], model)


CHECKPOINTS = [
    ("{epoch:02d}.keras", {}),
    ("{epoch:02d}.h5", {}),
    ("{epoch:02d}.weights.h5", {"save_weights_only": True}),
]


@pytest.mark.parametrize(("name", "options"), CHECKPOINTS, ids=["keras", "h5", "weights"])
def test_checkpoints_are_written_by_rank_zero(shared_tmp_path, name, options):
    path = shared_tmp_path / f"rank{hvd.rank()}" / name
    model = fit(
        [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.RankZeroModelCheckpoint(path, **options),
        ],
        epochs=2,
    )
    hvd.barrier("test.checkpoints")
    assert os.listdir(shared_tmp_path) == ["rank0"]
    suffix = name.removeprefix("{epoch:02d}")
    assert sorted(os.listdir(shared_tmp_path / "rank0")) == [f"01{suffix}", f"02{suffix}"]
    loaded = mlp()
    loaded.load_weights(shared_tmp_path / "rank0" / f"02{suffix}")
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_best_model_by_the_value_over_all_ranks(shared_tmp_path):
    """The best epoch of the average is another one than rank 0's own best."""
    n, values = hvd.size(), [[1.0, 0.0, 2.0], [2.0, 9.0, 0.0]]

    class Value(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["value"] = values[0 if IS_ZERO else 1][epoch]

    path = shared_tmp_path / "best.weights.h5"
    saved = []

    class Saved(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            hvd.barrier("test.saved")
            saved.append(path.stat().st_mtime_ns)

    fit(
        [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            Value(),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.RankZeroModelCheckpoint(
                path, monitor="value", mode="min", save_best_only=True, save_weights_only=True
            ),
            Saved(),
        ],
        epochs=3,
    )
    averages = [(values[0][e] + (n - 1) * values[1][e]) / n for e in range(3)]
    best_so_far = [averages[e] == min(averages[: e + 1]) for e in range(3)]
    assert [b != a for a, b in zip([0, *saved], saved, strict=False)] == best_so_far
    assert_same_on_all_ranks([saved])


def test_checkpoint_every_few_batches(shared_tmp_path):
    path = shared_tmp_path / "{epoch}-{batch}.keras"
    fit([hvd.callbacks.RankZeroModelCheckpoint(path, save_freq=2)])
    hvd.barrier("test.batches")
    assert sorted(os.listdir(shared_tmp_path)) == ["1-2.keras", "1-4.keras"]


def test_wrong_arguments_are_wrong_on_every_rank():
    with pytest.raises(ValueError, match="must end in"):
        hvd.callbacks.RankZeroModelCheckpoint("model.txt")


def test_file_that_cannot_be_written(shared_tmp_path):
    (shared_tmp_path / "taken.keras").mkdir(exist_ok=True)
    model = mlp()
    model.compile("sgd", "mse")
    callback = hvd.callbacks.RankZeroModelCheckpoint(shared_tmp_path / "taken.keras")
    failed = False
    try:
        fit([callback], model)
    except OSError as error:
        failed = "directory" in str(error)
    assert everywhere(failed) == [True] + [False] * (hvd.size() - 1)
