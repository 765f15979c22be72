"""A model that was saved with a distributed optimizer loads where hvd_keras is not installed."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import hvd_keras as hvd

LOAD = """
import sys
sys.modules["hvd_keras"] = None  # importing it fails
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
optimizer = model.optimizer
print(type(optimizer).__name__, type(getattr(optimizer, "inner_optimizer", optimizer)).__name__)
print(int(optimizer.iterations))
if sys.argv[1].endswith(".h5"):
    # Keras 3.15 loads any optimizer from this format without variables, so it cannot train on.
    print(model.predict(np.ones((1, 3)), verbose=0).size)
else:
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    print(int(optimizer.iterations))
"""

OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.01, weight_decay=0.1),
    "SGD": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10), 0.9),
}


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_load(tmp_path, name, policy, suffix):
    hvd.init()
    if policy == "mixed_float16" and suffix == ".h5":
        pytest.skip("Keras itself does not load LossScaleOptimizer from .h5")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype=policy)])
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name]())
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    model.compile(optimizer, keras.losses.MeanSquaredError())
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    path = tmp_path / f"model{suffix}"
    model.save(path)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    outer = "LossScaleOptimizer" if policy == "mixed_float16" else name
    class_names, steps = done.stdout.split()[:2], done.stdout.split()[2:]
    assert class_names == [outer, name]
    if suffix == ".keras":
        assert steps == ["2", "4"]
