"""load_model: training goes on where it was, with a distributed optimizer."""

import keras
import numpy as np
import pytest
from keras_cases import assert_same_on_all_ranks, everywhere, joined_data, mlp

import hvd_keras as hvd
from hvd_keras.keras._distributed import is_distributed
from hvd_keras.keras.saving import save_model


def train(model, first, last):
    """The batches `first` to `last - 1` of rank-dependent data."""
    x, y = hvd.shard(joined_data(8, 2))
    rows = slice(first * 2, last * 2)
    model.fit(
        x[rows],
        y[rows],
        batch_size=2,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )


def save_on_rank_zero(model, path):
    if hvd.rank() == 0:
        save_model(model, path)
    hvd.barrier("test.saved")


def make(optimizer, policy="float32", loss="mse"):
    model = mlp(keras.layers.BatchNormalization())
    if policy != "float32":
        with keras.utils.custom_object_scope({}):
            config = model.get_config()
            model = keras.Sequential.from_config(config)
            for layer in model.layers:
                layer.dtype_policy = policy
            model.dtype_policy = policy
    model.compile(hvd.DistributedOptimizer(optimizer), loss, metrics=["mae"])
    return model


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.02),
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9, use_ema=True),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.02, momentum=0.9), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_resumed_training_is_bit_equal_to_uninterrupted(shared_tmp_path, kind, suffix):
    whole = make(OPTIMIZERS[kind]())
    train(whole, 0, 4)
    save_on_rank_zero(whole, shared_tmp_path / f"model.{suffix}")
    train(whole, 4, 8)

    resumed = hvd.load_model(shared_tmp_path / f"model.{suffix}")
    assert is_distributed(resumed.optimizer)
    assert int(resumed.optimizer.iterations) == 4
    train(resumed, 4, 8)
    for a, b in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(resumed.optimizer.variables, whole.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)
    assert_same_on_all_ranks(resumed.get_weights())


def test_loss_scale_that_compile_has_added(shared_tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = mlp()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        train(model, 0, 4)
        save_on_rank_zero(model, shared_tmp_path / "model.keras")
        train(model, 4, 8)
        resumed = hvd.load_model(shared_tmp_path / "model.keras")
        assert isinstance(resumed.optimizer, keras.optimizers.LossScaleOptimizer)
        assert is_distributed(resumed.optimizer)
        train(resumed, 4, 8)
    finally:
        keras.config.set_dtype_policy("float32")
    for a, b in zip(resumed.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)
    assert_same_on_all_ranks(resumed.get_weights())


class Halving(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / 2, variable, learning_rate)


class Scale(keras.layers.Layer):
    def call(self, x):
        return 2 * x


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_custom_optimizer_and_layer(shared_tmp_path, suffix):
    model = mlp(Scale())
    model.compile(hvd.DistributedOptimizer(Halving(0.1, momentum=0.5)), "mse")
    train(model, 0, 2)
    path = shared_tmp_path / f"model.{suffix}"
    save_on_rank_zero(model, path)
    loaded = hvd.load_model(path, custom_optimizers=[Halving], custom_objects={"Scale": Scale})
    assert isinstance(loaded.optimizer, Halving) and is_distributed(loaded.optimizer)
    for a, b in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_options_reach_the_optimizer(shared_tmp_path):
    model = make(OPTIMIZERS["adam"]())
    train(model, 0, 1)
    save_on_rank_zero(model, shared_tmp_path / "model.keras")
    path = shared_tmp_path / "model.keras"
    loaded = hvd.load_model(path, compression=hvd.Compression.fp16, op=hvd.Sum)
    assert loaded.optimizer._hvd_reduction.compression is hvd.Compression.fp16
    assert loaded.optimizer._hvd_reduction.op is hvd.Sum
    with pytest.raises(TypeError, match="wrong_option"):
        hvd.load_model(shared_tmp_path / "model.keras", wrong_option=1)


def test_model_without_an_optimizer(shared_tmp_path):
    save_on_rank_zero(mlp(), shared_tmp_path / "model.keras")
    assert not hvd.load_model(shared_tmp_path / "model.keras").compiled
    model = make(OPTIMIZERS["adam"]())
    train(model, 0, 1)
    save_on_rank_zero(model, shared_tmp_path / "compiled.h5")
    assert not hvd.load_model(shared_tmp_path / "compiled.h5", compile=False).compiled


def test_safe_mode_is_kept(shared_tmp_path):
    model = mlp(keras.layers.Lambda(lambda x: 2 * x))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    save_on_rank_zero(model, shared_tmp_path / "model.keras")
    with pytest.raises(ValueError, match="safe_mode"):
        hvd.load_model(shared_tmp_path / "model.keras")
    hvd.load_model(shared_tmp_path / "model.keras", safe_mode=False)


def test_file_that_one_rank_does_not_see(tmp_path):
    last = hvd.size() - 1
    model = make(OPTIMIZERS["adam"]())
    if hvd.rank() != last:
        save_model(model, tmp_path / "model.keras")
    message = ""
    try:
        hvd.load_model(tmp_path / "model.keras")
    except FileNotFoundError as error:
        message = str(error)
    messages = everywhere(message)
    assert messages[:last] == [""] * last
    assert f"rank {last} on " in messages[last] and "model.keras" in messages[last]
