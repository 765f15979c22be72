"""From one machine to HorovodRunner: trains on scikit-learn's handwritten digits.

    python examples/horovod_runner.py              # two processes on this machine
    python examples/horovod_runner.py --np 2       # two tasks of a Spark job

The numbered steps are what a script for one machine needs. ``main`` is sent to the ranks, so it
imports what it uses itself. The last line is what rank 0 returned:
``val_accuracy: 0.9694 ranks: 2``.
"""

import argparse
import os
import tempfile

from hvd_keras.runner import HorovodRunner


def main(epochs, batch_size, folder):
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import hvd_keras as hvd
    from hvd_keras.runner.log_callback import LogCallback

    # 1. Meet the other ranks.
    hvd.init()

    # 2. Pin one GPU to each rank, if there are any.
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    # 3. Shard the data set: each rank reads its own part.
    digits = load_digits()
    x_train, x_val, y_train, y_val = train_test_split(
        (digits.data / 16.0).astype("float32"), digits.target, test_size=0.2, random_state=1
    )
    x_train, y_train = hvd.shard((x_train, y_train))
    x_val, y_val = hvd.shard((x_val, y_val), even=False)

    # 4. Scale the learning rate with the number of ranks, and 5. wrap the optimizer.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))

    keras.utils.set_random_seed(1 + hvd.rank())  # fit shuffles each part in its own order
    hidden = keras.layers.Dense(128, activation="relu")
    model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [
        # 6. Start from the weights of rank 0. The metrics are those of all data.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        LogCallback(),  # shows rank 0's progress where the job was started
    ]
    # 7. Only rank 0 writes checkpoints.
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(os.path.join(folder, "digits.keras")))
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        epochs=epochs,
        validation_data=(x_val, y_val),
        callbacks=callbacks,
        verbose=0,
    )
    return hvd.size(), history.history["val_accuracy"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--np", type=int, default=-2, help="below 0: on this machine, else on Spark"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--folder", help="where the checkpoint goes (default: nowhere)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        ranks, accuracies = HorovodRunner(np=arguments.np).run(
            main,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            folder=arguments.folder or scratch,
        )
    print(f"val_accuracy: {accuracies[-1]:.4f} ranks: {ranks}")
