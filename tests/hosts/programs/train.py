"""A training on ranks that are fed different data: ``train.py FOLDER``.

Each rank writes ``rank.<r>.npz`` with its weights, its host and its place there. ``train.py FOLDER
RANKS`` is one process that is fed what so many ranks get, joined, and writes ``joined.npz``.
"""

import socket
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hvd_keras as hvd

BATCH, STEPS, FEATURES, EPOCHS = 8, 12, 6, 2  # a batch is what one rank gets in a step


def batches(ranks: int, rows: slice) -> tf.data.Dataset:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, ranks * BATCH, FEATURES)).astype("float32")
    y = np.sin(x.sum(axis=2, keepdims=True)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x[:, rows], y[:, rows]))


def main() -> None:
    folder = Path(sys.argv[1])
    hvd.init()
    joined = len(sys.argv) > 2
    keras.utils.set_random_seed(hvd.rank())  # other weights on each rank, but for the broadcast
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    if joined:
        data, callbacks, name = batches(int(sys.argv[2]), slice(None)), [], "joined"
    else:
        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        data = batches(hvd.size(), slice(hvd.rank(), None, hvd.size()))
        name = f"rank.{hvd.rank()}"
    model.compile(optimizer, "mse")
    model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=callbacks)
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    place += [hvd.cross_rank(), hvd.cross_size()]
    weights = {f"w{i}": w for i, w in enumerate(model.get_weights())}
    np.savez(folder / f"{name}.npz", host=socket.gethostname(), place=place, **weights)


if __name__ == "__main__":
    main()
