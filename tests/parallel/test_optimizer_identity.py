"""DistributedOptimizer: what the optimizer stays, and which arguments are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_cases import (
    OPTIMIZERS,
    RANK,
    SIZE,
    assert_same_on_all_ranks,
)

import hvd_keras as hvd
from hvd_keras.gradients import reduce_gradients


def test_a_built_optimizer_keeps_its_state():
    v = keras.Variable([0.0])
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.apply([tf.constant([1.0])], [v])
    variables = optimizer.variables
    distributed = hvd.DistributedOptimizer(optimizer)
    assert [id(v) for v in distributed.variables] == [id(v) for v in variables]
    assert int(distributed.iterations.numpy()) == 1 and distributed.built
    distributed.apply([tf.constant([RANK + 1.0])], [v])
    assert int(distributed.iterations.numpy()) == 2
    assert_same_on_all_ranks([v, *distributed.variables])


def test_the_learning_rate_stays_what_it_was():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(schedule))._learning_rate is schedule
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.learning_rate = 0.25
    v = keras.Variable([0.0])
    optimizer.apply([tf.constant([4.0])], [v])
    assert float(v[0]) == -1.0


def test_serialization_is_that_of_the_base():
    for make in (OPTIMIZERS["Adam"], OPTIMIZERS["schedule"]):
        plain = keras.saving.serialize_keras_object(make())
        ours = keras.saving.serialize_keras_object(hvd.DistributedOptimizer(make()))
        plain["registered_name"] = ours["registered_name"] = None
        for config in (plain, ours):
            config["config"]["name"] = "optimizer"
        assert ours == plain
        loaded = keras.saving.deserialize_keras_object(ours)
        assert type(loaded) is type(make())


def test_names_of_the_class():
    base = keras.optimizers.Adam(0.1)
    cls = type(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    assert (cls.__name__, cls.__qualname__) == ("Adam", "Adam")
    assert isinstance(hvd.DistributedOptimizer(keras.optimizers.Adam()), type(base))
    assert cls.__module__ == "keras.optimizers"


@keras.saving.register_keras_serializable("my_package", "Registered")
class RegisteredSGD(keras.optimizers.SGD):
    pass


class CustomSGD(keras.optimizers.SGD):
    pass


def test_custom_optimizers_serialize_under_their_own_name():
    config = keras.saving.serialize_keras_object(hvd.DistributedOptimizer(RegisteredSGD(0.1)))
    assert config["registered_name"] == "my_package>Registered"
    assert type(keras.saving.deserialize_keras_object(config)) is RegisteredSGD
    config = keras.saving.serialize_keras_object(hvd.DistributedOptimizer(CustomSGD(0.1)))
    loaded = keras.saving.deserialize_keras_object(config, {"CustomSGD": CustomSGD})
    assert type(loaded) is CustomSGD


def test_from_config_makes_a_distributed_one():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    copy = optimizer.from_config(optimizer.get_config())
    assert copy.get_config() == optimizer.get_config()
    v = keras.Variable([0.0])
    copy.apply([tf.constant([RANK + 1.0])], [v])
    assert float(v[0]) == -sum(range(1, SIZE + 1))


def test_checkpoints_of_tensorflow(tmp_path):
    v = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    optimizer.apply([tf.constant([1.0])], [v])
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / f"rank{RANK}"))
    other = keras.optimizers.Adam(0.5)
    other.build([keras.Variable([0.0])])
    tf.train.Checkpoint(optimizer=other).restore(path)
    for ours, theirs in zip(optimizer.variables, other.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_name_instead_of_an_optimizer():
    assert type(hvd.DistributedOptimizer("rmsprop")).__name__ == "RMSprop"


# Wrong arguments.


def test_wrapping_twice_is_an_error():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    for again in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(again)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"op": hvd.Max}, ValueError, "expected hvd.Average, hvd.Sum or"),
        ({"op": "average"}, ValueError, "expected hvd.Average, hvd.Sum or"),
        ({"gradient_predivide_factor": 0.0}, ValueError, "greater than 0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, ValueError, "no meaning with"),
        ({"num_groups": -1}, ValueError, "at least 0"),
        ({"groups": tf.Variable([1.0, 2.0])}, ValueError, "list of lists of variables"),
        ({"groups": [tf.Variable([1.0, 2.0])]}, ValueError, "list of lists of variables"),
        ({"groups": [["kernel"]]}, ValueError, "list of lists of variables"),
        ({"groups": "kernel"}, ValueError, "list of lists of variables"),
        ({"process_set": [0]}, TypeError, "is not a hvd.ProcessSet"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **arguments)


def test_not_an_optimizer():
    for wrong in (object(), keras.optimizers.SGD, tf.compat.v1.train.GradientDescentOptimizer(0.1)):
        with pytest.raises(TypeError, match="expected a Keras optimizer"):
            hvd.DistributedOptimizer(wrong)


def test_the_one_of_horovod_tensorflow():
    v = keras.Variable([0.0])
    optimizer = hvd.tensorflow.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.apply([tf.constant([RANK + 1.0])], [v])
    assert float(v[0]) == -sum(range(1, SIZE + 1))
    with pytest.raises(ValueError, match="use_locking"):
        hvd.tensorflow.DistributedOptimizer(keras.optimizers.SGD(1.0), use_locking=True)


def test_complex_gradients_are_refused():
    with pytest.raises(TypeError, match="complex64, which cannot be reduced"):
        reduce_gradients([tf.constant([1 + 1j], tf.complex64)], [tf.Variable([1 + 1j])])
