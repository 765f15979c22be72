"""Scripts with ``tf.keras`` that is Keras 2, and programs that have nothing to do with it."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("tf_keras")

RANKS = 2


def hvdrun(script, *arguments, tmp_path, keras2=True, alias=True):
    path = tmp_path / "train.py"
    path.write_text(script)
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1" if keras2 else "0"}
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.launch", *(["--compat"] if alias else [])]
        + ["-np", str(RANKS), sys.executable, str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


FIT = """
import sys
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd
import hvd_keras

hvd.init()
# y = 3 * x; rank r has x = r + 1, so the mean gradient of (w * x - y)^2 is 2 * (w - 3) * 2.5
x = np.full([8, 1], hvd.rank() + 1.0, np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat().batch(2)

model = tf.keras.Sequential([
    tf.keras.layers.Dense(
        1, use_bias=False, input_shape=(1,),
        kernel_initializer=tf.keras.initializers.Constant(5.0 + hvd.rank())
    ),
])
OPTIMIZER
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss="mse", optimizer=opt, metrics=["mae"], experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.02, warmup_epochs=1, verbose=0),
]
assert all(isinstance(callback, tf.keras.callbacks.Callback) for callback in callbacks)
callbacks.append(hvd_keras.callbacks.RankZero(tf.keras.callbacks.CSVLogger(sys.argv[1] + "/log")))
checkpoint = hvd_keras.callbacks.RankZeroModelCheckpoint(sys.argv[1] + "/best.keras")
assert isinstance(checkpoint, tf.keras.callbacks.ModelCheckpoint)
callbacks.append(checkpoint)
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(sys.argv[1] + "/checkpoint-{epoch}.h5"))
model.fit(dataset, steps_per_epoch=4, epochs=2, callbacks=callbacks, verbose=0)

w, size = 5.0, hvd.size()
for step in range(8):
    rate = 0.02 / size * (1 + (size - 1) * min((step + 1) / 4, 1))
    w -= rate * 2 * (w - 3) * 2.5
assert abs(float(model.get_weights()[0][0, 0]) - w) < 1e-5, (model.get_weights(), w)

if hvd.rank() == 0:
    for name in ("checkpoint-1.h5", "best.keras"):
        again = hvd.load_model(sys.argv[1] + "/" + name)
        assert isinstance(again, tf.keras.Model) and type(again.optimizer).__name__ == "SGD"
    assert len(open(sys.argv[1] + "/log").readlines()) == 3
named = hvd.DistributedOptimizer("sgd")
assert isinstance(named, tf.keras.optimizers.SGD), type(named)

import keras
assert keras.__version__.startswith("3."), keras.__version__
inputs = keras.Input((1,))
assert isinstance(keras.Model(inputs, keras.layers.Dense(1)(inputs)), keras.Model)
assert not isinstance(model, keras.Model)
print("ALL DONE")
"""


@pytest.mark.parametrize(
    "optimizer",
    ["opt = tf.keras.optimizers.SGD(0.02)", "opt = tf.keras.optimizers.legacy.SGD(lr=0.02)"],
    ids=["new", "legacy"],
)
def test_fit(tmp_path, optimizer):
    output = hvdrun(FIT.replace("OPTIMIZER", optimizer), tmp_path, tmp_path=tmp_path)
    assert output.count("ALL DONE") == RANKS, output


GRAPH = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

tf.compat.v1.disable_v2_behavior()
hvd.init()
x = np.full([8, 1], hvd.rank() + 1.0, np.float32)
model = tf.keras.Sequential([
    tf.keras.layers.Dense(
        1, use_bias=False, input_shape=(1,),
        kernel_initializer=tf.keras.initializers.Constant(5.0 + hvd.rank())
    ),
])
opt = hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.01, momentum=0.5))
model.compile(loss="mse", optimizer=opt, metrics=["mae"])

class Stop(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and hvd.rank() == 0:
            self.model.stop_training = True

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=1),
    Stop(),
]
history = model.fit(x, 3 * x, batch_size=2, epochs=4, verbose=0, callbacks=callbacks)

w, momentum, old, losses = 5.0, 0.0, 0.01, []
for step in range(8):
    rate = 0.02 / hvd.size() * (1 + (hvd.size() - 1) * min((step + 1) / 4, 1))
    losses.append((w - 3) ** 2 * 2.5)  # the mean of (x * (w - 3)) ** 2 for x = 1 and 2
    momentum = 0.5 * momentum * rate / old - rate * 2 * (w - 3) * 2.5
    w, old = w + momentum, rate
weights = model.get_weights()[0]
assert abs(float(weights[0, 0]) - w) < 1e-5, (weights, w)
expected = [np.mean(losses[:4]), np.mean(losses[4:])]
assert np.allclose(history.history["loss"], expected, rtol=1e-5), (history.history, expected)
print("ALL DONE")
"""


def test_fit_in_a_graph_of_tensorflow_1(tmp_path):
    assert hvdrun(GRAPH, tmp_path=tmp_path).count("ALL DONE") == RANKS


LOOP = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
model = tf.keras.Sequential([
    tf.keras.layers.Dense(4, input_shape=(3,)),
    hvd.SyncBatchNormalization(),
    tf.keras.layers.Dense(1),
])
assert isinstance(model.layers[1], tf.keras.layers.BatchNormalization)
opt = tf.keras.optimizers.legacy.Adam(0.01 * hvd.size())

@tf.function
def step(x, y, first_batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss

rng = np.random.default_rng(hvd.rank())
for batch in range(3):
    x = rng.normal(size=(4, 3)).astype("float32")
    step(x, x[:, :1], batch == 0)

wrapped = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01), backward_passes_per_step=2)
for batch in range(4):
    x = rng.normal(size=(4, 3)).astype("float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    wrapped.apply_gradients(zip(grads, model.trainable_variables))
assert int(wrapped.iterations) == 2
copies = hvd.allgather_object([v.numpy().tobytes() for v in model.weights])
assert all(copy == copies[0] for copy in copies)
print("ALL DONE")
"""


def test_own_loop(tmp_path):
    assert hvdrun(LOOP, tmp_path=tmp_path).count("ALL DONE") == RANKS


ELASTIC = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
opt = hvd.DistributedOptimizer(OPTIMIZER(0.1, momentum=0.9))
model.compile(opt, "mse")
model.set_weights([np.full((2, 1), float(hvd.rank())), np.zeros(1)])
state = hvd.elastic.KerasState(model, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    assert np.all(model.get_weights()[0] == 0.0)
    x = np.full((8, 2), hvd.rank() + 1.0, np.float32)
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, 2),
    ]
    model.fit(x, x[:, :1], batch_size=2, epochs=2, callbacks=callbacks, verbose=0)
    before = [w.copy() for w in model.get_weights()]
    model.set_weights([w + 1 for w in before])
    state.restore()
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))

train(state)
assert state.epoch == 2 and int(opt.iterations) == 8, (state.epoch, opt.iterations)
print("ALL DONE")
"""


@pytest.mark.parametrize(
    "optimizer",
    ["tf.keras.optimizers.SGD", "tf.keras.optimizers.legacy.SGD"],
    ids=["new", "legacy"],
)
def test_elastic(tmp_path, optimizer):
    output = hvdrun(ELASTIC.replace("OPTIMIZER", optimizer), tmp_path=tmp_path)
    assert output.count("ALL DONE") == RANKS


KERAS_3_ONLY = """
import sys
import tensorflow as tf
import horovod.tensorflow as native
import horovod.tensorflow.keras as hvd
import hvd_keras

hvd.init()
model = tf.keras.Sequential([
    tf.keras.Input((2,)), native.SyncBatchNormalization(), tf.keras.layers.Dense(1)
])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.1),
    hvd_keras.callbacks.RankZero(tf.keras.callbacks.CSVLogger("log.csv")),
    hvd_keras.callbacks.RankZeroModelCheckpoint("model.keras"),
]
model.fit(tf.ones((8, 2)), tf.ones((8, 1)), batch_size=2, verbose=0, callbacks=callbacks)
hvd_keras.barrier()
hvd.load_model("model.keras")
assert not [name for name in sys.modules if name.split(".")[0] == "tf_keras"]
print("ALL DONE")
"""


def test_keras_2_is_not_imported_where_nobody_asks_for_it(tmp_path):
    assert hvdrun(KERAS_3_ONLY, tmp_path=tmp_path, keras2=False).count("ALL DONE") == RANKS
