"""Trains on the rows of a Spark DataFrame, with the tasks of a Spark job as ranks.

    python examples/spark_run.py                         # Spark on this machine
    python examples/spark_run.py --master spark://host:7077 --num-proc 4

The last line is ``loss: 0.0000 true weights: 3.0 -2.0 found: 3.00 -2.00 ranks: 2``.
"""

import argparse

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import hvd_keras.spark


def make_data(spark, rows):
    """Returns rows of x0, x1 and y = 3 x0 - 2 x1 as an array; Spark computes them."""
    frame = spark.range(rows).select(F.rand(1).alias("x0"), F.rand(2).alias("x1"))
    frame = frame.withColumn("y", 3 * F.col("x0") - 2 * F.col("x1"))
    # Arrays are sent to the ranks, DataFrames cannot be. Large data goes through files that each
    # rank reads its part of.
    return np.array(frame.collect(), "float32")


def train(data, epochs):
    import keras

    import hvd_keras as hvd

    hvd.init()
    mine = hvd.shard(data)
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05 * hvd.size())), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        mine[:, :2], mine[:, 2:], batch_size=32, epochs=epochs, callbacks=callbacks, verbose=0
    )
    return history.history["loss"], model.get_weights()[0][:, 0].tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-proc", type=int, default=2, help="the number of ranks")
    parser.add_argument("--master", help="of the Spark cluster (default: this machine)")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    master = arguments.master or f"local[{arguments.num_proc}]"
    session = SparkSession.builder.appName("spark_run").master(master).getOrCreate()
    try:
        data = make_data(session, rows=1024)
        results = hvd_keras.spark.run(train, (data, arguments.epochs), num_proc=arguments.num_proc)
    finally:
        session.stop()
    losses, weights = results[0]
    assert all(result[1] == weights for result in results), "the ranks have parted"
    found = " ".join(f"{weight:.2f}" for weight in weights)
    print(f"loss: {losses[-1]:.4f} true weights: 3.0 -2.0 found: {found} ranks: {len(results)}")
