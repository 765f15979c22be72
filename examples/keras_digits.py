"""Trains a small network on scikit-learn's handwritten digits, on any number of processes.

    hvdrun -np 2 python examples/keras_digits.py
    python examples/keras_digits.py

The numbered steps are all that distinguishes it from a script for one process. The last line says
how well and how fast: ``val_accuracy: 0.9833 samples/s: ... ranks: 2``.
"""

import argparse
import os
import tempfile
import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hvd_keras as hvd


class Throughput(keras.callbacks.Callback):
    """Measures samples per second of this rank, without the first epoch, in which Keras traces."""

    def __init__(self, samples_per_epoch):
        super().__init__()
        self.samples_per_epoch = samples_per_epoch
        self.ends = []

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append(time.perf_counter())

    def samples_per_second(self):
        epochs = len(self.ends) - 1
        return epochs * self.samples_per_epoch / (self.ends[-1] - self.ends[0]) if epochs else 0.0


def build_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train(epochs, batch_size, checkpoint):
    # 1. Meet the other processes.
    hvd.init()

    # 2. One GPU per process, if there are any.
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    # 3. Each process reads its own part. For validation the parts may differ in size.
    digits = load_digits()
    x_train, x_val, y_train, y_val = train_test_split(
        (digits.data / 16.0).astype("float32"), digits.target, test_size=0.2, random_state=1
    )
    x_train, y_train = hvd.shard((x_train, y_train))
    x_val, y_val = hvd.shard((x_val, y_val), even=False)

    # 4. Scale the learning rate with the number of processes, and 5. wrap the optimizer.
    learning_rate = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate))

    model = build_model()
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    throughput = Throughput(len(x_train))
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        epochs=epochs,
        validation_data=(x_val, y_val),
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[
            # 6. Start from the same weights. 7. Metrics over the data of all processes.
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(learning_rate, warmup_epochs=3),
            # 8. Checkpoints are written by one process.
            hvd.callbacks.RankZeroModelCheckpoint(
                checkpoint, monitor="val_accuracy", save_best_only=True
            ),
            throughput,
        ],
    )
    speed = hvd.allreduce(throughput.samples_per_second(), op=hvd.Sum, name="samples/s")
    if hvd.rank() == 0:
        accuracy = history.history["val_accuracy"][-1]
        print(f"val_accuracy: {accuracy:.4f} samples/s: {float(speed):.0f} ranks: {hvd.size()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--checkpoint", help="where to keep the best model (default: nowhere)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = arguments.checkpoint or os.path.join(folder, "digits.keras")
        train(arguments.epochs, arguments.batch_size, checkpoint)


if __name__ == "__main__":
    main()
