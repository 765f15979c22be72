"""Trains with the actors of a Ray cluster as ranks, which keep their model between two calls.

    python examples/ray_executor.py                      # on this machine
    RAY_ADDRESS=auto python examples/ray_executor.py     # on the cluster that it is part of

The last line is ``val_accuracy: 0.9722 ranks: 2``.
"""

import argparse

import ray

from hvd_keras.ray import RayExecutor


class Trainer:
    """One on each worker. What it needs is imported there."""

    def __init__(self, batch_size):
        import keras
        import tensorflow as tf
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        import hvd_keras as hvd

        hvd.init()
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
        digits = load_digits()
        x_train, x_val, y_train, y_val = train_test_split(
            (digits.data / 16.0).astype("float32"), digits.target, test_size=0.2, random_state=1
        )
        keras.utils.set_random_seed(1 + hvd.rank())  # fit shuffles each part in its own order
        self.batch_size = batch_size
        self.training = hvd.shard((x_train, y_train))
        self.validation = hvd.shard((x_val, y_val), even=False)
        hidden = keras.layers.Dense(128, activation="relu")
        self.model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(optimizer, loss, metrics=["accuracy"])

    def train(self, epochs):
        import hvd_keras as hvd

        history = self.model.fit(
            *self.training,
            batch_size=self.batch_size,
            epochs=epochs,
            validation_data=self.validation,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
            ],
            verbose=0,
        )
        return history.history["val_accuracy"][-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    arguments = parser.parse_args()
    ray.init()
    settings = RayExecutor.create_settings(timeout_s=60)
    executor = RayExecutor(settings, arguments.num_workers, use_gpu=arguments.use_gpu)
    executor.start(Trainer, [arguments.batch_size])
    try:
        for _ in range(2):
            accuracies = executor.execute(lambda trainer: trainer.train(epochs=5))
            print(f"val_accuracy: {accuracies[0]:.4f} ranks: {executor.num_workers}")
    finally:
        executor.shutdown()
        ray.shutdown()
