"""The standard Keras pattern on several processes, with TensorFlow's strategy and with ours.

    hvdrun -np 2 python examples/strategy.py

`train` below is what the Keras guides say: make and compile the model in the strategy's scope, call
fit. It is given `tf.distribute.MultiWorkerMirroredStrategy` first, in processes of its own, since
that one starts servers which stay; with Keras 3 it fails. Then it is given `hvd.Strategy`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def train(strategy, epochs):
    """Trains on scikit-learn's handwritten digits; returns what fit has recorded."""
    import keras
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    # The same arrays everywhere; 64 is the batch of all processes together.
    data = {"x": x[:1437], "y": y[:1437], "validation_data": (x[1437:], y[1437:])}
    return model.fit(**data, batch_size=64, epochs=epochs, verbose=0).history


def with_multi_worker(epochs):
    """The child process: ends with the error of MultiWorkerMirroredStrategy, or without one."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    try:
        history = train(strategy, epochs)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:120]} ...", flush=True)
    else:
        print(f"val_accuracy: {history['val_accuracy'][-1]:.4f}", flush=True)
    os._exit(0)  # its servers wait for each other


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def run_child(rank, workers, epochs):
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    try:
        child = subprocess.run(
            [sys.executable, __file__, "--multi-worker", "--epochs", str(epochs)],
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return "has not ended within two minutes"
    return child.stdout.strip() or f"ended with code {child.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--multi-worker", action="store_true", help="the child process")
    arguments = parser.parse_args()
    if arguments.multi_worker:
        with_multi_worker(arguments.epochs)

    import hvd_keras as hvd

    hvd.init()
    workers = hvd.broadcast_object(free_addresses(hvd.size()))
    told = hvd.allgather_object(run_child(hvd.rank(), workers, arguments.epochs))
    history = train(hvd.Strategy(), arguments.epochs)
    histories = hvd.allgather_object(history)
    if hvd.rank() == 0:
        print(f"tf.distribute.MultiWorkerMirroredStrategy: {told[0]}")
        print(
            f"hvd.Strategy: val_accuracy: {history['val_accuracy'][-1]:.4f} "
            f"ranks: {hvd.size()} same history: {all(h == history for h in histories)}"
        )


if __name__ == "__main__":
    main()
