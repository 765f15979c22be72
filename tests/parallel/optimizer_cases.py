"""What the tests of the optimizer share."""

import keras
import numpy as np
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import _library

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = np.mean(range(1, SIZE + 1))


def collectives():
    return _library.core.stats()["collectives"]


def assert_same_on_all_ranks(variables):
    mine = [np.asarray(v).tobytes() for v in variables]
    assert all(other == mine for other in hvd.allgather_object(mine))


def steps(optimizer, grads_of_step, variables, count=3, graph=False):
    """Applies `count` times what `grads_of_step(step)` gives."""

    def apply(grads):
        optimizer.apply_gradients(list(zip(grads, variables, strict=True)))

    optimizer.build(variables)
    run = tf.function(apply) if graph else apply
    for step in range(count):
        run(grads_of_step(step))


def model_gradients(rank, step):
    rng = np.random.default_rng(1000 * step + rank)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in ((4, 3), (3,), (3, 2), ())]


def mean_gradients(step):
    return [
        tf.add_n(list(gs)) / SIZE
        for gs in zip(*[model_gradients(rank, step) for rank in range(SIZE)], strict=True)
    ]


def new_variables():
    rng = np.random.default_rng(7)
    return [
        keras.Variable(rng.normal(size=shape).astype("float32"), name="v")  # equal names
        for shape in ((4, 3), (3,), (3, 2), ())
    ]


def embedding_gradient(rank):
    """Row 1 twice, and one row of the rank's own."""
    values = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) * (rank + 1)
    return tf.IndexedSlices(values, tf.constant([1, 1, 2 + rank]), tf.constant([8, 2]))


def joined_embedding_gradient():
    """What one process computes for the joined batch: all slices, scaled to its mean."""
    parts = [embedding_gradient(rank) for rank in range(SIZE)]
    return tf.IndexedSlices(
        tf.concat([p.values for p in parts], 0) / SIZE,
        tf.concat([p.indices for p in parts], 0),
        tf.constant([8, 2]),
    )


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "Adamax": lambda: keras.optimizers.Adamax(0.1),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "Nadam": lambda: keras.optimizers.Nadam(0.1),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
    "Lamb": lambda: keras.optimizers.Lamb(0.1),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.1),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "weight_decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "loss_scale_factor": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=4.0),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    ),
    "callable": lambda: keras.optimizers.SGD(lambda: 0.1),
}
if not hasattr(keras.optimizers, "Lamb"):  # an older Keras
    del OPTIMIZERS["Lamb"]
