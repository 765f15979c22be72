"""A training loop of one's own, with ``DistributedGradientTape``.

hvdrun -np 2 python examples/custom_loop.py
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import hvd_keras as hvd


def make_dataset(batch_size):
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((images, digits.target))
    # Shard first: then each process shuffles and batches its own examples.
    return hvd.shard(dataset).shuffle(2000).batch(batch_size, drop_remainder=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    arguments = parser.parse_args()

    hvd.init()
    dataset = make_dataset(arguments.batch_size)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    compute_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    # Before the first step, so that all ranks start from the weights of rank 0.
    hvd.broadcast_variables(model.weights + optimizer.variables, root_rank=0)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = compute_loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    for epoch in range(arguments.epochs):
        mean = keras.metrics.Mean()
        for images, labels in dataset:
            mean.update_state(step(images, labels))
        loss = float(hvd.allreduce(mean.result(), name="loss"))
        if hvd.rank() == 0:
            print(f"epoch: {epoch + 1} loss: {loss:.4f}")


if __name__ == "__main__":
    main()
