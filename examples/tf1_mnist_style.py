"""A tf.compat.v1 graph in a MonitoredTrainingSession, on the digits of scikit-learn.

    hvdrun -np 2 python examples/tf1_mnist_style.py --checkpoints /tmp/digits

Started again with the same folder, it goes on where it stopped. It runs without hvdrun, too.
"""

import argparse

import numpy as np
import sklearn.datasets
import tensorflow.compat.v1 as tf

import hvd_keras.tensorflow as hvd
from hvd_keras.tensorflow.hooks import BroadcastGlobalVariablesHook

tf.disable_v2_behavior()


def load_digits(rank, size):
    """Returns this rank's part of the training data, and all of the test data."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.data[order].astype(np.float32) / 16, digits.target[order]
    train = len(labels) * 4 // 5 // size * size  # equally many for each rank
    mine = slice(rank, train, size)
    return images[mine], labels[mine], images[train:], labels[train:]


def dense(name, x, units, activation=None):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    y = x @ kernel + bias
    return activation(y) if activation else y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", help="folder of rank 0's checkpoints")
    parser.add_argument("--steps", type=int, default=600, help="steps of one process")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    args = parser.parse_args()

    hvd.init()
    x, y, test_x, test_y = load_digits(hvd.rank(), hvd.size())

    images = tf.placeholder(tf.float32, [None, 64])
    labels = tf.placeholder(tf.int64, [None])
    logits = dense("logits", dense("hidden", images, 64, tf.nn.relu), 10)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))

    # The batch is size() times as large, so the steps may be longer, and fewer do.
    global_step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.AdagradOptimizer(0.05 * hvd.size()))
    train_op = optimizer.minimize(loss, global_step=global_step)
    mean_loss = hvd.allreduce(loss, op=hvd.Average)

    # Each rank sees its own GPU, if there are any.
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    final = tf.train.FinalOpsHook(accuracy, {images: test_x, labels: test_y})
    hooks = [
        BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=args.steps // hvd.size()),
        final,
    ]
    rng = np.random.default_rng(hvd.rank())
    losses = []
    checkpoint_dir = args.checkpoints if hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=checkpoint_dir, config=config, hooks=hooks, log_step_count_steps=None
    ) as session:
        begin = session.run_step_fn(lambda step_context: step_context.session.run(global_step))
        while not session.should_stop():
            batch = rng.choice(len(y), args.batch_size, replace=False)
            feed = {images: x[batch], labels: y[batch]}
            _, value = session.run([train_op, mean_loss], feed)
            losses.append(value)

    if hvd.rank() == 0:
        seen = f"loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else "no step left"
        print(f"from step {begin}: {seen}, test accuracy {final.final_ops_values:.4f}")


if __name__ == "__main__":
    main()
