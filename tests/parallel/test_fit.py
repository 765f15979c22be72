"""fit on several ranks: equal weights everywhere, those of one process on the joined batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import assert_same_on_all_ranks, everywhere, joined_data, mlp

import hvd_keras as hvd

BATCHES, BATCH = 6, 4


class Subclassed(keras.Model):
    """Built on its first batch."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(7)
        self.hidden = keras.layers.Dense(4, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


class OwnStep(Subclassed):
    """With a train_step of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


MODELS = {
    "sequential": mlp,
    "deferred": lambda: mlp(build=False),
    "subclassed": Subclassed,
    "own_step": OwnStep,
    "embedding": lambda: embedding_model(),
}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    ),
    "callable": lambda: keras.optimizers.SGD(lambda: 0.05),
    "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
}
CASES = [("sequential", optimizer, {}) for optimizer in OPTIMIZERS] + [
    ("deferred", "adam", {}),
    ("subclassed", "adam", {}),
    ("own_step", "adam", {}),
    ("embedding", "adam", {}),
    ("sequential", "adam", {"steps_per_execution": 4}),
    ("sequential", "adam", {"run_eagerly": True}),
    ("subclassed", "sgd", {"steps_per_execution": 4}),
    ("subclassed", "sgd", {"run_eagerly": True}),
    ("own_step", "sgd", {"run_eagerly": True}),
]


def embedding_model():
    """Its gradients are tf.IndexedSlices."""
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [
            keras.layers.Rescaling(0.0),
            keras.layers.Lambda(lambda x: tf.cast(x + 1, tf.int32)),
            keras.layers.Embedding(5, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def train_alone(model, optimizer, **options):
    """One process, with the batches of all ranks."""
    model.compile(optimizer, "mse", **options)
    x, y = joined_data(BATCHES, BATCH)
    model.fit(x, y, batch_size=BATCH * hvd.size(), epochs=2, shuffle=False, verbose=0)
    return model


def train_together(model, optimizer, **options):
    model.compile(hvd.DistributedOptimizer(optimizer), "mse", **options)
    x, y = hvd.shard(joined_data(BATCHES, BATCH))
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    return model


@pytest.mark.parametrize(
    ("kind", "optimizer", "options"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_weights_are_those_of_one_process(kind, optimizer, options):
    together = train_together(MODELS[kind](), OPTIMIZERS[optimizer](), **options)
    assert_same_on_all_ranks(together.get_weights())
    assert_same_on_all_ranks(
        [v.numpy() for v in together.optimizer.variables if "gradient_accumulator" not in v.path]
    )
    alone = train_alone(MODELS[kind](), OPTIMIZERS[optimizer](), **options)
    for a, b in zip(together.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    untrained = MODELS[kind]()
    untrained(np.zeros((1, 3), "float32"))
    assert np.abs(untrained.get_weights()[-1] - b).max() > 1e-3


def test_dropout_masks_differ_and_weights_agree():
    """With the same data everywhere, the gradient would be the same if the masks were."""
    masked = []

    class Record(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                masked.append(x.numpy() == 0)
            return x

    model = mlp(keras.layers.Dropout(0.5), Record())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", run_eagerly=True)
    x, y = joined_data(1, 64, seed=1)
    model.fit(
        x,
        y,
        batch_size=len(x),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert_same_on_all_ranks(model.get_weights())
    masks = everywhere([mask.tobytes() for mask in masked])
    assert len({tuple(mask) for mask in masks}) == hvd.size()
    assert len(masks[0]) == 2 and masks[0][0] != masks[0][1]


def test_batch_normalization():
    model = train_together(mlp(keras.layers.BatchNormalization()), keras.optimizers.Adam(0.01))
    assert_same_on_all_ranks(model.get_weights())


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = train_together(mlp(), keras.optimizers.Adam(0.01))
    finally:
        keras.config.set_dtype_policy("float32")
    assert_same_on_all_ranks(model.get_weights())
    assert_same_on_all_ranks([v.numpy() for v in model.optimizer.variables])


def test_all_callbacks_together(shared_tmp_path):
    model = mlp(keras.layers.BatchNormalization(), build=False)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), "mse", metrics=["mae"]
    )
    x, y = hvd.shard(joined_data(BATCHES, BATCH))
    val = hvd.shard(joined_data(3, 5, seed=1), even=False)
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=4,
        verbose=0,
        validation_data=val,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=2),
            hvd.callbacks.LearningRateScheduleCallback(0.05, 0.5, start_epoch=2),
            keras.callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=True),
            hvd.callbacks.RankZeroModelCheckpoint(shared_tmp_path / "{epoch}.keras"),
            hvd.callbacks.RankZero(keras.callbacks.CSVLogger(str(shared_tmp_path / "log.csv"))),
        ],
    )
    assert_same_on_all_ranks(model.get_weights())
    assert_same_on_all_ranks([values for _, values in sorted(history.history.items())])
    hvd.barrier("test.all_callbacks")
    assert (shared_tmp_path / "1.keras").exists() and (shared_tmp_path / "log.csv").exists()


def test_loop_of_ones_own_with_the_tape():
    x, y = hvd.shard(joined_data(BATCHES, BATCH))
    model = mlp()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    for variable in model.weights:
        variable.assign(variable + hvd.rank())
    hvd.broadcast_variables(model.weights + optimizer.variables, root_rank=0)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    for _ in range(2):
        for batch in range(BATCHES):
            rows = slice(batch * BATCH, (batch + 1) * BATCH)
            step(x[rows], y[rows])
    alone = train_alone(mlp(), keras.optimizers.Adam(0.01))
    for a, b in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    assert_same_on_all_ranks(model.get_weights())
