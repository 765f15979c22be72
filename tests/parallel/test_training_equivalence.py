"""The first promise: ranks that are fed different data end with bit-identical weights, which are
those of one process that is fed the joined batches."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
BATCH, STEPS, FEATURES = 8, 12, 6  # a batch is what one rank gets in a step


def joined_batches():
    """x [STEPS, SIZE * BATCH, FEATURES] and y [STEPS, SIZE * BATCH, 1], the same on all ranks."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, SIZE * BATCH, FEATURES)).astype("float32")
    y = np.sin(x.sum(axis=2, keepdims=True)) + 0.1 * rng.normal(size=(*x.shape[:2], 1))
    return x, y.astype("float32")


def dataset(mine):
    """This rank's part of every joined batch, or all of it."""
    x, y = joined_batches()
    rows = slice(RANK, None, SIZE) if mine else slice(None)
    return tf.data.Dataset.from_tensor_slices((x[:, rows], y[:, rows]))


def layers(*extra):
    return [
        keras.layers.Dense(16, activation="tanh"),
        *extra,
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(1),
    ]


def sequential(*extra, seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((FEATURES,)), *layers(*extra)])


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
}
JIT = {"jit_compile": True}
GRAPH_AND_JIT = pytest.mark.parametrize("options", [{}, JIT], ids=["graph", "jit"])
EACH_OPTIMIZER = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def fit(model, optimizer, mine, epochs=2, **options):
    fit_options = {"callbacks": options.pop("callbacks", None)}
    model.compile(optimizer, "mse", **options)
    model.fit(dataset(mine), epochs=epochs, verbose=0, shuffle=False, **fit_options)
    return model


@functools.cache
def one_process(make, epochs=2):
    """The model that one process trains on the joined batches; not to be changed."""
    return fit(sequential(), make(), mine=False, epochs=epochs)


def assert_identical_on_all_ranks(variables):
    mine = [np.asarray(v) for v in variables]
    for theirs in hvd.allgather_object(mine):
        for a, b in zip(mine, theirs, strict=True):
            assert a.tobytes() == b.tobytes()


def assert_equal(model, reference):
    assert_identical_on_all_ranks(model.trainable_variables)
    assert_identical_on_all_ranks(model.optimizer.variables)
    start = sequential()
    for ours, theirs, initial in zip(
        model.get_weights(), reference.get_weights(), start.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        assert np.abs(theirs - initial).max() > 1e-3  # it did train


@EACH_OPTIMIZER
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"run_eagerly": True},
        {"steps_per_execution": 4},
        {"steps_per_execution": 5},  # 12 steps: the last execution is cut short
        {"jit_compile": True},
        {"jit_compile": True, "steps_per_execution": 5},
        {"jit_compile": "auto"},
    ],
    ids=["graph", "eager", "4_steps", "5_steps", "jit", "jit_5_steps", "auto"],
)
def test_fit(make, options):
    model = fit(sequential(), hvd.DistributedOptimizer(make()), mine=True, **options)
    assert_equal(model, one_process(make))


def test_sum_of_gradients_of_a_summed_loss():
    rate = 0.05 / (SIZE * BATCH)
    model, reference = sequential(), sequential()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9), op=hvd.Sum)
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model.compile(optimizer, loss)
    reference.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
    model.fit(dataset(mine=True), epochs=2, verbose=0, shuffle=False)
    reference.fit(dataset(mine=False), epochs=2, verbose=0, shuffle=False)
    assert_equal(model, reference)


class OwnStep(keras.Model):
    """A subclassed model with its own train_step, built on its first batch."""

    def __init__(self):
        super().__init__()
        self.all_layers = layers()

    def call(self, x, training=False):
        for layer in self.all_layers:
            x = layer(x)
        return x

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}),
        ("Adam", {"steps_per_execution": 4}),
        ("Adam", {"run_eagerly": True}),
        ("Adam", JIT),
    ],
    ids=["graph", "4_steps", "eager", "jit"],
)
def test_own_train_step(name, options):
    make = OPTIMIZERS[name]

    def subclassed():
        keras.utils.set_random_seed(0)
        model = OwnStep()
        model(tf.zeros((1, FEATURES)))
        return model

    model = fit(subclassed(), hvd.DistributedOptimizer(make()), mine=True, **options)
    assert_equal(model, one_process(make))


@EACH_OPTIMIZER
@GRAPH_AND_JIT
def test_subclassed_model_that_is_built_on_its_first_batch(make, options):
    # Other weights on every rank, until the callback gives all those of rank 0.
    keras.utils.set_random_seed(RANK)
    model = fit(
        OwnStep(),
        hvd.DistributedOptimizer(make()),
        mine=True,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        **options,
    )
    assert_equal(model, one_process(make))


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.parametrize(("name", "wrap"), [("SGD", "tape"), ("Adam", "tape"), ("Adam", "wrapper")])
def test_own_training_loop(name, wrap, mode):
    make = OPTIMIZERS[name]
    model = sequential()
    optimizer = make() if wrap == "tape" else hvd.DistributedOptimizer(make())
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        if wrap == "tape":
            tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    run = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
    for _ in range(2):
        for x, y in dataset(mine=True):
            run(x, y)
    model.optimizer = optimizer
    assert_equal(model, one_process(make))


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adam", {}), ("SGD", {"steps_per_execution": 4}), ("Adam", JIT), ("SGD", JIT)],
    ids=["graph", "4_steps", "jit-Adam", "jit-SGD"],
)
def test_accumulation_over_three_batches(name, options):
    make = OPTIMIZERS[name]

    def accumulating(k):
        return type(make()).from_config({**make().get_config(), "gradient_accumulation_steps": k})

    model = fit(sequential(), hvd.DistributedOptimizer(accumulating(3)), mine=True, **options)
    assert_equal(model, one_process(lambda: accumulating(3)))


@GRAPH_AND_JIT
def test_evaluate_predict_and_fit_again(options):
    make = OPTIMIZERS["Adam"]
    model = fit(sequential(), hvd.DistributedOptimizer(make()), mine=True, epochs=1, **options)
    reference = fit(sequential(), make(), mine=False, epochs=1)
    model.evaluate(dataset(mine=False), verbose=0)
    model.predict(dataset(mine=False), verbose=0)
    for each, mine in ((model, True), (reference, False)):
        each.fit(dataset(mine), validation_data=dataset(mine=False), verbose=0)
    assert_equal(model, reference)


# Layers that are random, or count, on each rank for itself.


@GRAPH_AND_JIT
def test_dropout_differs_by_rank_and_weights_agree(options):
    keras.utils.set_random_seed(RANK)
    dropout = keras.layers.Dropout(0.5)
    model = sequential(dropout, seed=RANK)
    hvd.broadcast_variables(model.trainable_variables, 0)
    fit(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), mine=True, **options)
    assert_identical_on_all_ranks(model.trainable_variables)
    assert_identical_on_all_ranks(model.optimizer.variables)
    masks = hvd.allgather_object(dropout(np.ones((8, 16)), training=True).numpy())
    for mask in masks[1:]:
        assert np.any(mask != masks[0])


@GRAPH_AND_JIT
def test_batch_normalization_weights_agree_and_statistics_are_each_ranks_own(options):
    normalization = keras.layers.BatchNormalization()
    model = sequential(normalization)
    fit(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), mine=True, **options)
    assert_identical_on_all_ranks(model.trainable_variables)
    assert_identical_on_all_ranks(model.optimizer.variables)
    means = hvd.allgather_object(normalization.moving_mean.numpy())
    for mean in means[1:]:
        assert np.any(mean != means[0])


@GRAPH_AND_JIT
@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_embedding(make, options):
    def model():
        keras.utils.set_random_seed(0)
        return keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(50, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    def tokens(mine):
        rng = np.random.default_rng(5)
        x = rng.integers(0, 50, (STEPS, SIZE * BATCH, 4))
        y = rng.normal(size=(STEPS, SIZE * BATCH, 1)).astype("float32")
        rows = slice(RANK, None, SIZE) if mine else slice(None)
        return tf.data.Dataset.from_tensor_slices((x[:, rows], y[:, rows]))

    trained, reference = model(), model()
    trained.compile(hvd.DistributedOptimizer(make(0.01)), "mse", **options)
    reference.compile(make(0.01), "mse")
    trained.fit(tokens(True), epochs=2, verbose=0, shuffle=False)
    reference.fit(tokens(False), epochs=2, verbose=0, shuffle=False)
    assert_identical_on_all_ranks(trained.weights)
    for ours, theirs in zip(trained.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


@GRAPH_AND_JIT
def test_rerun_is_bit_identical(options):
    results = []
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["Adam"]())
        model = fit(sequential(), optimizer, mine=True, **options)
        results.append([w.tobytes() for w in model.get_weights()])
    assert results[0] == results[1]


# Mixed precision.


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("outside", [False, True])
@GRAPH_AND_JIT
def test_mixed_precision_with_an_overflow_on_one_rank(policy, outside, options):
    # compile() puts a LossScaleOptimizer around the optimizer under mixed_float16.
    keras.config.set_dtype_policy(policy)
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.01)
    if outside and policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    x, y = joined_batches()
    x, y = x[:, RANK::SIZE].copy(), y[:, RANK::SIZE]
    model.compile(hvd.DistributedOptimizer(optimizer), "mse", **options)
    if policy == "mixed_float16" and RANK == SIZE - 1:
        x[3, 0, 0] = np.inf  # one step overflows, on this rank
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)), epochs=1, verbose=0, shuffle=False)
    assert_identical_on_all_ranks(model.trainable_variables)
    assert_identical_on_all_ranks(model.optimizer.variables)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    if policy == "mixed_float16":
        assert float(model.optimizer.dynamic_scale.numpy()) <= 2.0**14
        assert int(model.optimizer.iterations.numpy()) < STEPS
    else:
        assert int(model.optimizer.iterations.numpy()) == STEPS
