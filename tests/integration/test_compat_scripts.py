"""Scripts written for Horovod, not one line changed, on two ranks under the alias."""

import subprocess
import sys

import pytest

RANKS = 2


def hvdrun(script, *arguments, tmp_path, code=0, alias=("--compat",), python=()):
    path = tmp_path / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.launch", *alias, "-np", str(RANKS)]
        + [sys.executable, *python, str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


KERAS_FIT = """
import argparse
import os

import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint")
args = parser.parse_args()

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# y = 3 * x; rank r has x = r + 1, so the mean gradient of (w * x - y)^2 is 2 * (w - 3) * 2.5
x = np.full([8, 1], hvd.rank() + 1.0, np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat().batch(2)

model = tf.keras.Sequential([
    tf.keras.layers.Input([1]),
    tf.keras.layers.Dense(
        1, use_bias=False, kernel_initializer=tf.keras.initializers.Constant(5.0 + hvd.rank())
    ),
])
opt = tf.keras.optimizers.SGD(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(
    opt, backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(loss="mse", optimizer=opt, metrics=["mae"], experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size(), warmup_epochs=0),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(args.checkpoint + "/{epoch}.keras"))
verbose = 1 if hvd.rank() == 0 else 0
history = model.fit(
    dataset, steps_per_epoch=8 // hvd.size(), callbacks=callbacks, epochs=2, verbose=verbose
)
w, squares, total = 5.0, [], []
for step in range(8):
    squares.append((w - 3) ** 2 * 2.5)
    w -= 0.02 * 2 * (w - 3) * 2.5
np.testing.assert_allclose(model.get_weights()[0], [[w]], rtol=1e-5)
np.testing.assert_allclose(
    history.history["loss"], [np.mean(squares[:4]), np.mean(squares[4:])], rtol=1e-5
)
if hvd.rank() == 0:
    assert sorted(os.listdir(args.checkpoint)) == ["1.keras", "2.keras"]
    again = hvd.load_model(args.checkpoint + "/2.keras")
    assert type(again.optimizer).__name__ == "SGD"
print("finished", hvd.rank())
"""


def test_keras_fit(tmp_path):
    output = hvdrun(KERAS_FIT, "--checkpoint", tmp_path / "saved", tmp_path=tmp_path)
    assert "finished 0" in output and "finished 1" in output
    assert "compile() ignores it" in output


TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
model = tf.keras.Sequential([
    tf.keras.layers.Input([2]),
    tf.keras.layers.Dense(
        1, use_bias=False, kernel_initializer=tf.keras.initializers.Constant(hvd.rank() - 1.0)
    ),
])
loss_object = tf.losses.MeanSquaredError()
opt = tf.optimizers.SGD(0.1 * hvd.size(), momentum=0.5)


@tf.function
def training_step(x, y, first_batch):
    with tf.GradientTape() as tape:
        loss = loss_object(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss


x = tf.one_hot([hvd.rank()], 2)  # rank r trains weight r: gradient 2 * (w[r] - 4) of it, halved
for batch in range(3):
    loss = training_step(x, tf.constant([[4.0]]), batch == 0)
w, v = -1.0, 0.0
for batch in range(3):
    v = 0.5 * v - 0.2 * (w - 4)
    w += v
if hvd.rank() == 0:
    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)
    checkpoint.save("./checkpoint")
weights = model.get_weights()[0]
gathered = hvd.allgather(weights[None])
assert (gathered[0] == gathered[1]).numpy().all()
# In its first step each rank has started from its own weights; the broadcast has made them equal.
print("weights", hvd.rank(), weights.ravel().tolist(), w)
assert abs(weights[0, 0] - w) < 1e-5, (weights, w)
"""


def test_custom_loop(tmp_path):
    output = hvdrun(TAPE, tmp_path=tmp_path, python=["-u", "-W", "ignore"])
    assert "weights 0" in output and "weights 1" in output
    assert (tmp_path / "checkpoint-1.index").exists()


TF1 = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
import horovod.tensorflow as hvd

tf.disable_eager_execution()
hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

w = tf.get_variable("w", initializer=tf.constant([1.0 + hvd.rank(), 2.0]))
x = tf.placeholder(tf.float32, [2])
loss = tf.reduce_sum(w * x)
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)
hooks.append(tf.train.StopAtStepHook(num_steps=3))
mean = hvd.allreduce(x, average=True, name="mean")
everything = hvd.allgather(x[None], name="everything")
checkpoint_dir = sys.argv[1] if hvd.rank() == 0 else None
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=checkpoint_dir, config=config, hooks=hooks
) as mon_sess:
    begin = mon_sess.run(w, {x: [0.0, 0.0]})
    steps = 0
    while not mon_sess.should_stop():
        feed = {x: [1.0 + 2 * hvd.rank(), 4.0]}  # mean: 2, 4
        fetches = {"t": train_op, "m": mean, "e": everything}
        if hvd.rank():
            fetches = dict(reversed(fetches.items()))
        got = mon_sess.run(fetches, feed)
        np.testing.assert_array_equal(got["m"], [2, 4])
        np.testing.assert_array_equal(got["e"], [[1, 4], [3, 4]])
        steps += 1
        if steps == 2:
            at_2 = mon_sess.run(w, feed) if not mon_sess.should_stop() else None
want = np.array(begin, np.float64)
acc = np.full(2, 0.1)
if len(sys.argv) == 2:
    np.testing.assert_allclose(begin, [1.0, 2.0])
    for _ in range(2):
        acc += np.square([2.0, 4.0])
        want -= 0.02 * np.array([2.0, 4.0]) / np.sqrt(acc)
    np.testing.assert_allclose(at_2, want, rtol=1e-5)
print("steps", steps, "from", begin.tolist())
"""


def test_monitored_training_session(tmp_path):
    folder = tmp_path / "train_logs"
    first = hvdrun(TF1, folder, tmp_path=tmp_path)
    assert first.count("steps 3 from [1.0, 2.0]") == RANKS
    second = hvdrun(TF1, folder, "restored", tmp_path=tmp_path)
    lines = {line.split("steps 3 ")[1] for line in second.splitlines() if "steps 3 " in line}
    assert len(lines) == 1 and "[1.0, 2.0]" not in lines.pop()


MISSION = """
import tensorflow.compat.v1 as tf
import horovod.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
w = tf.get_variable("w", initializer=tf.constant(3.0))
loss = tf.square(w - hvd.rank())
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
train_op = opt.minimize(loss)
checkpoint_dir = "train_logs" if hvd.rank() == 0 else None
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=checkpoint_dir, config=config, hooks=hooks
) as mon_sess:
    steps = 0
    while not mon_sess.should_stop() and steps < 5:
        mon_sess.run(train_op)
        steps += 1
    print("w", mon_sess.run(w))
"""


def test_a_session_of_a_graph_without_a_global_step(tmp_path):
    output = hvdrun(MISSION, tmp_path=tmp_path)
    values = {line.split("w ")[1] for line in output.splitlines() if "<stdout>: w " in line}
    w, acc = 3.0, 0.1
    for _ in range(5):
        grad = 2 * w - 1
        acc += grad**2
        w -= 0.02 * grad / acc**0.5
    assert len(values) == 1 and float(values.pop()) == pytest.approx(w, rel=1e-5)
    assert (tmp_path / "train_logs" / "checkpoint").exists()


ELASTIC = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError

hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
opt = tf.optimizers.SGD(0.1)
state = hvd.elastic.TensorFlowKerasState(model, opt, batch=hvd.rank(), epoch=0)
state.register_reset_callbacks([lambda: print("reset")])


@hvd.elastic.run
def train(state, limit):
    assert state.batch == 0  # rank 0's
    weights = hvd.allgather(model.get_weights()[0])
    assert (weights[0] == weights[1]).numpy().all()
    while state.batch < limit:
        state.batch += 1
        if state.batch == 3:
            if hvd.rank() == 1:
                raise SystemExit(7)
            state.batch = 100
            hvd.allreduce(tf.zeros([4]), name="alone")
        state.commit()


try:
    train(state, 5)
except HorovodInternalError as error:
    assert isinstance(error, tf.errors.AbortedError)
    print("internal error, restored to batch", state.batch, flush=True)
    raise
"""


def test_a_rank_that_dies_is_an_internal_error(tmp_path):
    output = hvdrun(ELASTIC, tmp_path=tmp_path, code=7)
    assert "internal error, restored to batch 2" in output and "reset" not in output


SESSION_AND_DEATH = """
import os
import tensorflow.compat.v1 as tf
import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError

tf.disable_v2_behavior()
hvd.init()
w = tf.get_variable("w", initializer=tf.constant(3.0))
train_op = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1)).minimize(w * w)
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
try:
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        for step in range(5):
            if hvd.rank() == 1 and step == 2:
                os._exit(9)
            session.run(train_op)
except HorovodInternalError as error:
    print("session ended:", error, flush=True)
    raise
"""


def test_a_session_ends_when_a_rank_dies(tmp_path):
    # TensorFlow takes the error for a passing one, and would create the session for ever.
    output = hvdrun(SESSION_AND_DEATH, tmp_path=tmp_path, code=9)
    assert "session ended: rank 0 on" in output and "cannot get the variables of rank 0" in output


AGAIN = """
import tensorflow as tf
import horovod.tensorflow as hvd

for repetition in range(3):
    hvd.init()
    print("sum", repetition, float(hvd.allreduce(tf.constant(1.0), average=False)))
    hvd.shutdown()
    assert not hvd.is_initialized()
"""


def test_init_again_after_shutdown(tmp_path):
    output = hvdrun(AGAIN, tmp_path=tmp_path)
    assert all(output.count(f"sum {n} 2.0") == 2 for n in range(3))


EMBEDDING = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
import horovod.keras as hvd
import horovod.tensorflow as hvd_tf

hvd.init()
options = hvd_tf.broadcast_object({"lr": 0.5} if hvd.rank() == 0 else None, root_rank=0)
for sparse_as_dense in (False, True):
    model = keras.Sequential([
        keras.layers.Input([1], dtype="int32"),
        keras.layers.Embedding(4, 2, embeddings_initializer="ones"),
    ])
    opt = keras.optimizers.SGD(options["lr"] * hvd.size())
    model.compile(
        hvd.DistributedOptimizer(opt, sparse_as_dense=sparse_as_dense),
        loss=lambda y, x: keras.ops.sum(x, axis=(1, 2)),
    )
    # Both ranks look row 0 up, and row r + 1; each row of a batch of two has gradient 1/2.
    rows = np.array([[0], [hvd.rank() + 1]])
    model.fit(rows, rows, batch_size=2, epochs=2, shuffle=False, verbose=0)
    want = np.ones([4, 2])
    want[0] -= 2 * 1.0 * 0.5
    want[1:3] -= 2 * 1.0 * 0.25
    np.testing.assert_allclose(model.get_weights()[0], want, rtol=1e-6)

names = hvd_tf.allgather_object(f"rank {hvd.rank()}")
assert names == ["rank 0", "rank 1"], names
uneven = hvd.allgather(np.full([hvd.rank() + 1, 2], float(hvd.rank())))
np.testing.assert_array_equal(uneven, [[0, 0], [1, 1], [1, 1]])
assert float(hvd.allreduce(hvd.rank() + 1.0, name="mean", average=True)) == 1.5
resume_from_epoch = hvd.broadcast(7 if hvd.rank() == 0 else 0, 0, name="resume_from_epoch")
assert int(resume_from_epoch) == 7
print("finished", hvd.rank())
"""


def test_embeddings_and_objects(tmp_path):
    output = hvdrun(EMBEDDING, tmp_path=tmp_path)
    assert "finished 0" in output and "finished 1" in output
