"""fit under hvd.Strategy: N ranks with batch B train as one process with batch B."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import everywhere
from strategy_cases import (
    assert_same_bits,
    assert_same_history,
    assert_trained_like,
    fit,
    joined_data,
    mlp,
    scope,
)

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STRATEGY = hvd.Strategy()
make = keras.optimizers


def embedding():
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def indices():
    rng = np.random.default_rng(1)
    return rng.integers(0, 20, size=(53, 5)), rng.normal(size=(53, 1)).astype("float32")


OPTIMIZERS = {
    "SGD": lambda: make.SGD(0.02),
    "momentum": lambda: make.SGD(0.02, momentum=0.9, nesterov=True),
    "Adam": lambda: make.Adam(0.01),
    "weight decay": lambda: make.AdamW(0.01, weight_decay=0.1),
    "clipnorm": lambda: make.Adam(0.01, clipnorm=0.01),
    "global clipnorm": lambda: make.SGD(0.05, global_clipnorm=0.1),
    "EMA": lambda: make.SGD(0.02, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "accumulation": lambda: make.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: make.LossScaleOptimizer(make.Adam(0.01)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_optimizers(optimizer):
    """The last batch has 5 rows, which cannot be divided evenly."""
    reference, expected = fit(None, mlp(), optimizer)
    model, history = fit(STRATEGY, mlp(), optimizer)
    assert_trained_like(model, reference)
    assert_same_history(history, expected)
    moved = np.abs(model.get_weights()[0] - mlp()().get_weights()[0]).max()
    assert moved > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {"steps_per_execution": 3},
        {"jit_compile": True},
        {"jit_compile": True, "steps_per_execution": 3},
    ],
    ids=str,
)
def test_ways_to_run(options):
    reference, expected = fit(None, mlp(), OPTIMIZERS["Adam"])
    model, history = fit(STRATEGY, mlp(), OPTIMIZERS["Adam"], **options)
    assert_trained_like(model, reference)
    assert_same_history(history, expected)


@pytest.mark.parametrize("optimizer", ["momentum", "Adam"])
def test_embedding(optimizer):
    """Its gradient is sparse."""
    reference, _ = fit(None, embedding, OPTIMIZERS[optimizer], indices())
    model, _ = fit(STRATEGY, embedding, OPTIMIZERS[optimizer], indices())
    assert_trained_like(model, reference)


def test_batches_of_fewer_rows_than_ranks():
    """One row in the last batch: only rank 0 has any."""
    data = joined_data(33)
    reference, expected = fit(None, mlp(), OPTIMIZERS["Adam"], data)
    model, history = fit(STRATEGY, mlp(), OPTIMIZERS["Adam"], data)
    assert_trained_like(model, reference)
    assert_same_history(history, expected)


def test_sample_weights_validation_and_a_summed_loss():
    options = {"loss": keras.losses.MeanSquaredError(reduction="sum")}
    x, y = joined_data(17, seed=3)
    fit_options = {
        "sample_weight": np.arange(53) / 53,
        "validation_data": (x, y, np.linspace(0, 2, 17)),
    }
    slow = lambda: make.SGD(0.001)  # noqa: E731
    reference, expected = fit(None, mlp(), slow, fit_options=fit_options, **options)
    model, history = fit(STRATEGY, mlp(), slow, fit_options=fit_options, **options)
    assert_trained_like(model, reference)
    assert {"loss", "mae", "val_loss", "val_mae"} == set(history)
    assert_same_history(history, expected)


def test_metrics_of_several_variables():
    x, y = joined_data()
    data = x, (y > 0).astype("float32")

    def run(strategy):
        with scope(strategy):
            options = {
                "loss": "binary_crossentropy",
                "metrics": ["accuracy", keras.metrics.AUC(name="auc")],
                "weighted_metrics": [keras.metrics.BinaryAccuracy(name="weighted")],
            }
        fit_options = {"class_weight": {0: 1.0, 1: 3.0}}
        return fit(strategy, classifier, make.Adam, data, fit_options=fit_options, **options)

    def classifier():
        return keras.Sequential([mlp()(), keras.layers.Activation("sigmoid")])

    reference, expected = run(None)
    model, history = run(STRATEGY)
    assert_trained_like(model, reference)
    assert_same_history(history, expected)


def test_shuffled_without_a_seed():
    """Ranks without a common seed still read every example once, and a new order each epoch."""
    keras.utils.set_random_seed(100 + RANK)
    seen = []

    class Recording(keras.Model):
        def call(self, inputs):
            return inputs * self.factor

        def build(self, shape):
            self.factor = self.add_weight(shape=(), initializer="ones")

        def train_step(self, data):
            seen.append([int(v) for v in data[0][:, 0]])
            return super().train_step(data)

    with STRATEGY.scope():
        model = Recording()
        model.compile("sgd", "mse", run_eagerly=True)
    x = np.arange(24, dtype="float32")[:, None]
    model.fit(x, x, batch_size=8, epochs=2, verbose=0)
    orders = []
    for epoch in range(2):
        batches = zip(*everywhere(seen[3 * epoch : 3 * epoch + 3]), strict=True)
        orders.append([v for batch in batches for part in batch for v in part])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(24))
    assert orders[0] != orders[1] and orders[0] != list(range(24))


def test_moving_statistics():
    """They are the mean of the ranks', and equal: momentum 1/2, batches of two constant rows."""
    with STRATEGY.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile("sgd", "mse")
    rows = np.repeat(np.arange(1.0, SIZE + 1), 2)[:, None].astype("float32")  # rank r gets r + 1
    model.fit(rows, rows, batch_size=len(rows), epochs=1, shuffle=False, verbose=0)
    np.testing.assert_allclose(layer.moving_mean.numpy(), [np.mean(rows) / 2], rtol=1e-6)
    assert_same_bits(model.weights)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_synchronized_batch_normalization(run_eagerly):
    build = mlp(lambda: keras.layers.BatchNormalization(synchronized=True))
    slow = lambda: make.SGD(0.01)  # noqa: E731
    reference, expected = fit(None, build, slow)
    model, history = fit(STRATEGY, build, slow, run_eagerly=run_eagerly)
    assert_trained_like(model, reference, atol=1e-5)
    assert_same_history(history, expected, rtol=1e-4)


def test_dropout_differs_between_ranks_and_weights_do_not():
    build = mlp(lambda: keras.layers.Dropout(0.5, seed=3))
    model, _ = fit(STRATEGY, build, OPTIMIZERS["SGD"])
    assert_same_bits(model.variables)  # the seed generator's state, too

    def masks():
        return model.layers[1](tf.ones([4, 16]), training=True)

    drawn = everywhere(STRATEGY.run(masks).numpy().tobytes())
    assert len(set(drawn)) == SIZE
    outside = everywhere(masks().numpy().tobytes())
    assert len(set(outside)) == 1


@pytest.mark.parametrize("steps", [1, 3])
def test_evaluate_and_predict(steps):
    """On all data, with the result on every rank; 13 rows in batches of 4."""
    reference, _ = fit(None, mlp(), OPTIMIZERS["Adam"])
    model, _ = fit(STRATEGY, mlp(), OPTIMIZERS["Adam"], steps_per_execution=steps)
    x, y = joined_data(13, seed=4)
    expected = reference.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    result = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    assert_same_history({k: [v] for k, v in result.items()}, {k: [v] for k, v in expected.items()})
    predicted = model.predict(x, batch_size=4, verbose=0)
    np.testing.assert_allclose(predicted, reference.predict(x, verbose=0), atol=1e-5)
    own = x[: 2 + RANK]
    np.testing.assert_allclose(model.predict_on_batch(own), predicted[: 2 + RANK], atol=1e-5)


def test_a_train_step_of_ones_own():
    """Its logs, which are no metrics of the model, become the mean over the ranks."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"rank": tf.cast(hvd.rank(), tf.float32), "rows": tf.shape(x)[0]}

    def run(strategy):
        return fit(strategy, Own, OPTIMIZERS["SGD"], metrics=None, fit_options={"batch_size": 26})

    reference, _ = run(None)
    model, history = run(STRATEGY)
    assert_trained_like(model, reference)
    np.testing.assert_allclose(history["rank"], [(SIZE - 1) / 2] * 2)
    np.testing.assert_allclose(history["rows"], [1 / SIZE] * 2)  # of the last batch


def test_early_stopping_on_all_ranks_alike():
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9)
    x, y = joined_data(8, seed=5)
    _, history = fit(
        STRATEGY,
        mlp(),
        OPTIMIZERS["SGD"],
        epochs=6,
        fit_options={"callbacks": [stop], "validation_data": (x, y)},
    )
    assert everywhere(len(history["loss"])) == [2] * SIZE


def test_nothing_is_said_about_training_alone(recwarn):
    """Also where Keras numbers the layers differently, since a rank has made others before."""
    made = [keras.layers.Dense(1) for _ in range(RANK)]
    model, _ = fit(STRATEGY, mlp(), OPTIMIZERS["SGD"])
    assert_same_bits(model.weights)
    assert len(made) == RANK
    assert not [w for w in recwarn if "alone" in str(w.message)]


def test_a_distributed_optimizer_is_refused():
    with pytest.raises(ValueError, match="give the model the plain Keras optimizer"):
        fit(STRATEGY, mlp(), lambda: hvd.DistributedOptimizer(make.SGD(0.1)))


def test_an_optimizer_and_compression():
    """An optimizer made outside of the scope; gradients that travel as bfloat16."""
    strategy = hvd.Strategy(compression=hvd.Compression.bf16, sparse_as_dense=True)
    optimizer = make.SGD(1.0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.zeros((1, 1), "float32")])
        model.compile(optimizer, loss=lambda y, z: z)
    # The ranks' gradients are 1 + 2^-9, which bfloat16 rounds to 1.
    x = np.full((SIZE * 2, 1), 1 + 2**-9, "float32")
    model.fit(x, x, batch_size=SIZE * 2, verbose=0)
    assert model.get_weights()[0][0, 0] == -1.0


def test_several_optimizers():
    """Keras's MultiOptimizer, where there is one: each of those in it reduces."""
    if not hasattr(make, "MultiOptimizer"):
        pytest.skip("this Keras has no MultiOptimizer")

    def optimizer():
        kernels, others = make.SGD(0.05, clipnorm=0.1), make.Adam(0.01)
        return make.MultiOptimizer(lambda v: kernels if "kernel" in v.path else others)

    reference, _ = fit(None, mlp(), optimizer)
    model, _ = fit(STRATEGY, mlp(), optimizer)
    assert_trained_like(model, reference)


def test_an_overflow_on_one_rank():
    """All ranks skip the step and halve the scale."""
    x = np.ones((2 * SIZE, 1), "float32")
    x[0] = 1e38  # rank 0's
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(make.LossScaleOptimizer(make.SGD(0.1)), "mse")
    before = model.get_weights()
    model.fit(x, x, batch_size=2 * SIZE, verbose=0)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert float(model.optimizer.dynamic_scale) == 2.0**14
    assert_same_bits([*model.weights, *model.optimizer.variables])


def test_with_our_callbacks():
    """They are not needed, and do no harm."""
    reference, expected = fit(STRATEGY, mlp(), OPTIMIZERS["Adam"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    options = {"callbacks": callbacks, "validation_data": joined_data(9, seed=2)}
    model, history = fit(STRATEGY, mlp(), OPTIMIZERS["Adam"], fit_options=options)
    assert_trained_like(model, reference)
    assert_same_history({key: history[key] for key in expected}, expected)


@pytest.mark.ranks(3)
def test_process_sets():
    """Two of three ranks train; the other is free."""
    some = hvd.add_process_set([0, 2])
    try:
        if RANK == 1:
            with pytest.raises(ValueError, match=r"rank 1 is not in"):
                hvd.Strategy(process_set=some)
            return
        strategy = hvd.Strategy(process_set=some)
        assert strategy.num_replicas_in_sync == 2
        assert strategy.cluster_resolver.task_id == some.rank()
        reference, _ = fit(None, mlp(), OPTIMIZERS["Adam"])
        model, _ = fit(strategy, mlp(), OPTIMIZERS["Adam"])
        for ours, theirs in zip(model.get_weights(), reference.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    finally:
        hvd.barrier()
        hvd.remove_process_set(some)
