"""Training with Keras 2 on several ranks against one process that has all data."""

import numpy as np
import pytest
import tensorflow as tf
from tf_keras_cases import (
    BATCH,
    EACH_OPTIMIZER,
    FEATURES,
    OPTIMIZERS,
    RANK,
    SIZE,
    STEPS,
    assert_equal,
    assert_identical_on_all_ranks,
    dataset,
    fit,
    joined_batches,
    layers,
    legacy,
    one_process,
    sequential,
    state,
    tf_keras,
)

import hvd_keras as hvd

pytestmark = pytest.mark.ranks(2)


@EACH_OPTIMIZER
@pytest.mark.parametrize(
    "options",
    [{}, {"run_eagerly": True}, {"steps_per_execution": 5}],
    ids=["graph", "eagerly", "5_steps_per_execution"],
)
def test_fit(make, options):
    model = fit(sequential(), hvd.DistributedOptimizer(make()), dataset(True), **options)
    assert_equal(model, one_process(make))


FURTHER = {
    "clipnorm": lambda: tf_keras.optimizers.SGD(0.05, clipnorm=0.1),
    "global_clipnorm": lambda: tf_keras.optimizers.SGD(0.05, global_clipnorm=0.2),
    "clipvalue": lambda: tf_keras.optimizers.SGD(0.05, clipvalue=0.02),
    "weight_decay": lambda: tf_keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "ema": lambda: tf_keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=5),
    "schedule": lambda: tf_keras.optimizers.SGD(
        tf_keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5)
    ),
    "legacy_clipnorm": lambda: legacy.SGD(0.05, clipnorm=0.1),
    "legacy_global_clipnorm": lambda: legacy.SGD(0.05, global_clipnorm=0.2),
    "legacy_clipvalue": lambda: legacy.SGD(0.05, clipvalue=0.02),
    "legacy_decay": lambda: legacy.SGD(0.05, decay=0.1),
}


@pytest.mark.parametrize("make", FURTHER.values(), ids=FURTHER.keys())
def test_what_comes_after_the_reduction(make):
    model = fit(sequential(), hvd.DistributedOptimizer(make()), dataset(True))
    assert_equal(model, one_process(make))


@pytest.mark.parametrize("make", [OPTIMIZERS["Adam"], OPTIMIZERS["legacy_SGD"]])
@pytest.mark.parametrize("graph", [False, True])
def test_own_training_loop(make, graph):
    model = sequential()
    optimizer = hvd.DistributedOptimizer(make())
    tape_only = make()
    twin = sequential()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((twin(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, twin.trainable_variables)
        tape_only.apply_gradients(zip(grads, twin.trainable_variables, strict=True))

    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
        tape_only.build(twin.trainable_variables)
    run = tf.function(step) if graph else step
    for _ in range(2):
        for x, y in dataset(True):
            run(x, y)
    model.optimizer, twin.optimizer = optimizer, tape_only
    assert_equal(model, one_process(make))
    assert_equal(twin, one_process(make))


@pytest.mark.parametrize("make", [OPTIMIZERS["Adam"], OPTIMIZERS["legacy_Adam"]])
def test_minimize_and_gradients_that_are_reduced_already(make):
    model = sequential()
    optimizer = hvd.DistributedOptimizer(make())
    is_legacy = isinstance(optimizer, legacy.Optimizer)
    skip = (
        {"experimental_aggregate_gradients": False}
        if is_legacy
        else {"skip_gradients_aggregation": True}
    )
    for _ in range(2):
        for number, (x, y) in enumerate(dataset(True)):

            def loss(x=x, y=y):
                return tf.reduce_mean((model(x, training=True) - y) ** 2)

            if number % 2:
                optimizer.minimize(loss, model.trainable_variables)
                continue
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                value = loss()
            grads = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True), **skip)
    model.optimizer = optimizer
    assert_equal(model, one_process(make))


def test_sum_of_gradients_of_a_summed_loss():
    rate = 0.05 / (SIZE * BATCH)
    model, reference = sequential(), sequential()
    loss = tf_keras.losses.MeanSquaredError(reduction="sum")
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(rate, momentum=0.9), op=hvd.Sum)
    model.compile(optimizer, loss)
    reference.compile(tf_keras.optimizers.SGD(rate, momentum=0.9), loss)
    model.fit(dataset(True), epochs=2, verbose=0, shuffle=False)
    reference.fit(dataset(False), epochs=2, verbose=0, shuffle=False)
    assert_equal(model, reference)


class OwnStep(tf_keras.Model):
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


@EACH_OPTIMIZER
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["graph", "eagerly"])
def test_subclassed_model_that_is_built_on_its_first_batch(make, options):
    # Other weights on every rank, until the callback gives all those of rank 0.
    tf_keras.utils.set_random_seed(RANK)
    model = fit(
        OwnStep(),
        hvd.DistributedOptimizer(make()),
        dataset(True),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        **options,
    )
    assert_equal(model, one_process(make))


# Accumulation: k batches of N ranks are one step on the joined big batch.


@EACH_OPTIMIZER
@pytest.mark.parametrize(
    "options",
    [{}, {"run_eagerly": True}, {"steps_per_execution": 4}],
    ids=["graph", "eagerly", "4_steps"],
)
def test_accumulation_equals_one_step_on_the_joined_big_batch(make, options):
    optimizer = hvd.DistributedOptimizer(
        make(), backward_passes_per_step=3, average_aggregated_gradients=True
    )
    model = fit(sequential(), optimizer, dataset(True), **options)
    assert_equal(model, one_process(make, joined=3))
    assert int(optimizer.iterations.numpy()) == 2 * STEPS // 3


def test_accumulated_gradients_are_added_up_unless_they_are_to_be_averaged():
    for average, expected in ((False, 1 + 2 + 3), (True, 2)):
        for optimizer in (tf_keras.optimizers.SGD(1.0), legacy.SGD(1.0)):
            optimizer = hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=3, average_aggregated_gradients=average
            )
            variable = tf.Variable(0.0)
            seen = []
            for step in range(6):
                grad = tf.constant(float(step % 3 + 1) + RANK)
                optimizer.apply_gradients([(grad, variable)])
                seen.append(float(variable.numpy()))
            of_ranks = (SIZE - 1) / 2 * (1 if average else 3)
            update = expected + of_ranks
            assert seen == [0, 0, -update, -update, -update, -2 * update]


def test_a_gradient_that_is_none_is_accumulated_neither():
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    used, unused = tf.Variable(1.0), tf.Variable(5.0)
    optimizer.build([used, unused])
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(float(RANK)), used), (None, unused)])
    assert used.numpy() == 1.0 - 2 * (SIZE - 1) / 2 and unused.numpy() == 5.0


# Embeddings: sparse gradients.

TOKENS = 40


def embedding_model():
    tf_keras.utils.set_random_seed(0)
    return tf_keras.Sequential(
        [
            tf_keras.Input((4,), dtype="int32"),
            tf_keras.layers.Embedding(TOKENS, 4),
            tf_keras.layers.Flatten(),
            tf_keras.layers.Dense(1),
        ]
    )


def tokens(mine, joined=1):
    rng = np.random.default_rng(5)
    x = rng.integers(0, TOKENS - 3, (STEPS, SIZE * BATCH, 4))
    y = rng.normal(size=(STEPS, SIZE * BATCH, 1)).astype("float32")
    rows = slice(RANK, None, SIZE) if mine else slice(None)
    x, y = x[:, rows], y[:, rows]
    x, y = x.reshape(-1, joined * x.shape[1], 4), y.reshape(-1, joined * y.shape[1], 1)
    return tf.data.Dataset.from_tensor_slices((x, y))


# Legacy SGD with momentum and legacy Adagrad leave the rows alone that a batch does not have.
SPARSE = {**OPTIMIZERS, "legacy_Adagrad": lambda: legacy.Adagrad(0.1)}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE.keys())
@pytest.mark.parametrize("passes", [1, 3])
def test_embedding(make, passes):
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    model, reference = embedding_model(), embedding_model()
    fit(model, hvd.DistributedOptimizer(make(), **options), tokens(True))
    fit(reference, make(), tokens(False, joined=passes))
    assert_equal(model, reference, start=embedding_model())


def test_accumulated_embedding_gradients_stay_sparse_and_start_again():
    # This optimizer lets a row's momentum rest where the row has no gradient.
    optimizer = hvd.DistributedOptimizer(legacy.SGD(1.0, momentum=0.5), backward_passes_per_step=2)
    table = tf.Variable(tf.zeros([2 * SIZE, 1]))
    seen = []
    for update in range(3):
        row = RANK + SIZE * (update % 2)  # the first rows, one by rank, the others, the first again
        for _ in range(2):
            slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([row] * 2), [4, 1])
            optimizer.apply_gradients([(slices, table)])
            seen.append(table.numpy()[:, 0].tolist())
    step = 6.0 / SIZE
    first, both = [-step] * SIZE + [0.0] * SIZE, [-step] * 2 * SIZE
    last = [-2.5 * step] * SIZE + [-step] * SIZE
    assert seen == [[0.0] * 2 * SIZE, first, first, both, both, last]


@pytest.mark.parametrize("passes", [1, 3])
def test_embedding_with_sparse_as_dense(passes):
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    model, reference = embedding_model(), embedding_model()
    make = OPTIMIZERS["Adam"]
    fit(model, hvd.DistributedOptimizer(make(), sparse_as_dense=True, **options), tokens(True))
    fit(reference, make(), tokens(False, joined=passes))
    assert_equal(model, reference, start=embedding_model())


# Mixed precision.


def mixed(make):
    """How an optimizer comes under a LossScaleOptimizer: compile does it, or the user, on either
    side of hvd.DistributedOptimizer."""
    scale = tf_keras.mixed_precision.LossScaleOptimizer
    return {
        "by_compile": lambda **options: hvd.DistributedOptimizer(make(), **options),
        "around": lambda **options: scale(hvd.DistributedOptimizer(make(), **options)),
        "inside": lambda **options: hvd.DistributedOptimizer(scale(make()), **options),
    }


@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], OPTIMIZERS["legacy_SGD"]], ids=["new", "old"])
@pytest.mark.parametrize("nesting", ["by_compile", "around", "inside"])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("eagerly", [False, True])
def test_mixed_precision_with_an_overflow_on_one_rank(make, nesting, passes, eagerly):
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = sequential()
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    start = model.get_weights()
    optimizer = mixed(make)[nesting](backward_passes_per_step=passes)
    x, y = joined_batches()
    x, y = x[:, RANK::SIZE].copy(), y[:, RANK::SIZE]
    if RANK == SIZE - 1:
        x[3, 0, 0] = np.inf  # this step overflows, on this rank
    fit(
        model,
        optimizer,
        tf.data.Dataset.from_tensor_slices((x, y)),
        epochs=1,
        run_eagerly=eagerly,
    )
    assert isinstance(model.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    assert_identical_on_all_ranks(model.trainable_variables)
    assert_identical_on_all_ranks(state(model.optimizer))
    for before, after in zip(start, model.get_weights(), strict=True):
        assert np.isfinite(after).all() and np.any(before != after)
    scales = hvd.allgather_object(float(model.optimizer.loss_scale.numpy()))
    assert len(set(scales)) == 1 and scales[0] <= 2.0**14


def test_bfloat16_needs_no_loss_scale():
    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = sequential()
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), dataset(True))
    assert_identical_on_all_ranks(model.trainable_variables)
    assert int(model.optimizer.iterations.numpy()) == 2 * STEPS


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"num_groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"name": "generator"},
        {"compression": hvd.Compression.none},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [OPTIMIZERS["Adam"], OPTIMIZERS["legacy_Adam"]])
def test_options_that_change_no_result(make, options):
    model = fit(sequential(), hvd.DistributedOptimizer(make(), **options), dataset(True))
    assert_equal(model, one_process(make))


def test_groups_of_variables():
    model = sequential()
    make = OPTIMIZERS["Adam"]
    groups = [model.trainable_variables[:2], model.trainable_variables[2:4]]
    fit(model, hvd.DistributedOptimizer(make(), groups=groups), dataset(True))
    assert_equal(model, one_process(make))


def test_compression_to_float16():
    variable = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(
        tf_keras.optimizers.SGD(1.0), compression=hvd.Compression.fp16
    )
    optimizer.apply_gradients([(tf.constant(1.0 + 2.0**-12 * RANK), variable)])
    assert variable.numpy() == -1.0


@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], lambda: legacy.SGD(0.05)])
def test_local_variables_and_layers(make):
    model = sequential()
    optimizer = hvd.PartialDistributedOptimizer(make(), local_layers=model.layers[1])
    optimizer.register_local_var(model.layers[0].bias)
    assert optimizer.process_set is hvd.global_process_set
    assert optimizer.scale_local_gradients is True
    fit(model, optimizer, dataset(True))
    local = [model.layers[0].bias, *model.layers[1].trainable_variables]
    shared = [v for v in model.trainable_variables if all(v is not other for other in local)]
    assert len(shared) == 3
    assert_identical_on_all_ranks(shared)
    for variable in local:
        copies = hvd.allgather_object(variable.numpy())
        assert np.any(copies[0] != copies[1])


def test_process_set_of_one_rank_reduces_nothing():
    alone = [hvd.add_process_set([rank]) for rank in range(SIZE)][RANK]
    variable = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0), process_set=alone)
    optimizer.apply_gradients([(tf.constant(float(RANK + 1)), variable)])
    assert variable.numpy() == -(RANK + 1)


# Where it is wrapped.


@pytest.mark.parametrize("name", ["hvd_keras.keras", "hvd_keras.tensorflow", "hvd_keras"])
def test_every_namespace_takes_them(name):
    import importlib

    wrap = importlib.import_module(name).DistributedOptimizer
    for optimizer in (tf_keras.optimizers.SGD(1.0), legacy.SGD(1.0)):
        optimizer = wrap(optimizer)
        variable = tf.Variable(0.0)
        optimizer.apply_gradients([(tf.constant(float(RANK)), variable)])
        assert variable.numpy() == -(SIZE - 1) / 2


def test_errors():
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(tf_keras.mixed_precision.LossScaleOptimizer(optimizer))
    with pytest.raises(ValueError, match="whole number"):
        hvd.DistributedOptimizer(legacy.SGD(1.0), backward_passes_per_step=0)
    with pytest.raises(TypeError, match="expected a Keras optimizer"):
        hvd.DistributedOptimizer(tf_keras.layers.Dense(1))
    with pytest.raises(TypeError, match="local_layers has a str"):
        hvd.PartialDistributedOptimizer(tf_keras.optimizers.SGD(1.0), local_layers=["x"])


def test_a_wrapped_optimizer_keeps_its_state_and_makes_distributed_copies():
    for optimizer in (OPTIMIZERS["momentum"](), OPTIMIZERS["legacy_SGD"]()):
        variable = tf.Variable(0.0)
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        before = [v.numpy() for v in state(optimizer)]
        wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
        assert wrapped is optimizer and type(wrapped).__name__ == "SGD"
        assert [v.numpy() for v in state(wrapped)] == before
        copy = type(wrapped).from_config(wrapped.get_config())
        other = tf.Variable(0.0)
        for _ in range(2):
            copy.apply_gradients([(tf.constant(float(RANK)), other)])
        rates = {"SGD": 0.05 * (1.9 if wrapped.get_config()["nesterov"] else 1.0)}
        np.testing.assert_allclose(other.numpy(), -rates["SGD"] * (SIZE - 1), rtol=1e-6)


def test_it_is_saved_as_what_it_was():
    for make in [*OPTIMIZERS.values(), lambda: legacy.Adagrad(0.1)]:
        plain, wrapped = make(), hvd.DistributedOptimizer(make())
        assert tf_keras.optimizers.serialize(wrapped) == tf_keras.optimizers.serialize(plain)
        copy = tf_keras.optimizers.deserialize(tf_keras.optimizers.serialize(wrapped))
        assert type(copy) is type(plain)


def test_ranks_need_not_have_built_equally_many_models():
    def mixed_model():
        tf_keras.mixed_precision.set_global_policy("mixed_float16")
        try:
            return sequential()
        finally:
            tf_keras.mixed_precision.set_global_policy("float32")

    if RANK == 0:
        fit(mixed_model(), OPTIMIZERS["Adam"](), dataset(True), steps_per_execution=3)
    options = {"backward_passes_per_step": 2}
    model = mixed_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["Adam"](), **options)
    fit(model, optimizer, dataset(True), steps_per_execution=3)
    assert_identical_on_all_ranks(model.trainable_variables)
    assert int(optimizer.iterations.numpy()) >= STEPS // 2


def test_one_graph_is_enough_for_inputs_of_several_sizes():
    # A last batch that is smaller has Keras trace again; the accumulators are made once.
    x, y = joined_batches()
    x, y = x.reshape(-1, FEATURES)[: 2 * 7], y.reshape(-1, 1)[: 2 * 7]
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.Adam(), backward_passes_per_step=2)
    model = sequential()
    model.compile(optimizer, "mse")
    model.fit(x[RANK::SIZE], y[RANK::SIZE], batch_size=3, epochs=2, verbose=0, shuffle=False)
    assert_identical_on_all_ranks(model.trainable_variables)
    assert int(optimizer.iterations.numpy()) == 3
