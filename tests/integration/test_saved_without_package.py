"""A model that was saved with a distributed optimizer loads where hvd_keras is not installed."""

import subprocess
import sys

import keras
import numpy as np

import hvd_keras as hvd

# Prints, for each file: the class of the optimizer, of what it scales the loss for, and how many
# steps it has made before and after two more.
LOAD = """
import sys
sys.modules["hvd_keras"] = None  # importing it fails
import keras, numpy as np
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    before = int(optimizer.iterations)
    # Keras 3.15 loads any optimizer from .h5 without variables, so it cannot train on.
    if not path.endswith(".h5"):
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    print(type(optimizer).__name__, type(inner).__name__, before, int(optimizer.iterations))
"""


def save(path, optimizer, policy="float32"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype=policy)])
    model.compile(optimizer, keras.losses.MeanSquaredError())
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    model.save(path)
    return str(path)


def test_load(tmp_path):
    hvd.init()
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    adam = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, weight_decay=0.1))
    sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(schedule, momentum=0.9))
    inner = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
    paths = [
        save(tmp_path / "adam.keras", adam),
        save(tmp_path / "sgd.keras", sgd),
        save(tmp_path / "scaled.keras", scaled, "mixed_float16"),
        save(tmp_path / "adam.h5", hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))),
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["Adam Adam 2 4", "SGD SGD 2 4", "LossScaleOptimizer Adam 2 4"]
    assert lines[3].startswith("Adam Adam")
