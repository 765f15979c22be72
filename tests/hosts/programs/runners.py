"""Starts ranks on two hosts, two on each, by one of the runners, and says what they have returned.

runners.py run | ray ADDRESS | spark ADDRESS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def train(failing: int) -> tuple[dict[str, Any], list[Any]]:
    """A real ``fit``; one rank may fail before it."""
    import socket

    import keras
    import numpy as np

    import hvd_keras as hvd

    hvd.init()
    if hvd.rank() == failing:
        raise KeyError("no such column")
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = np.full((4, 2), hvd.rank() + 1.0)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(x, x[:, :1], epochs=2, callbacks=[broadcast], verbose=0)
    place = {
        "host": socket.gethostname(),
        "rank": [hvd.rank(), hvd.size()],
        "local": [hvd.local_rank(), hvd.local_size()],
        "cross": [hvd.cross_rank(), hvd.cross_size()],
        "losses": len(history.history["loss"]),
    }
    return place, [weight.tolist() for weight in model.get_weights()]


Run = Callable[[int], list[Any]]


def by_run() -> Run:
    from hvd_keras import runner

    return lambda failing: runner.run(train, (failing,), np=4, hosts="host1:2,host2:2")


def by_spark(address: str) -> Run:
    from pyspark.sql import SparkSession

    import hvd_keras.spark

    builder = SparkSession.builder.master(address).config("spark.ui.enabled", "false")
    builder.config("spark.executor.memory", "512m").config("spark.log.level", "OFF").getOrCreate()
    return lambda failing: hvd_keras.spark.run(train, (failing,), num_proc=4)


def by_ray(address: str) -> Run:
    import ray

    from hvd_keras.ray import RayExecutor

    ray.init(address=address, log_to_driver=False)
    settings = RayExecutor.create_settings(timeout_s=120)
    executor = RayExecutor(settings, num_hosts=2, num_workers_per_host=2)
    executor.start()
    return lambda failing: executor.run(train, (failing,))


def main() -> None:
    from hvd_keras.runner import RankFailedError

    kinds: dict[str, Callable[..., Run]] = {"run": by_run, "spark": by_spark, "ray": by_ray}
    run = kinds[sys.argv[1]](*sys.argv[2:])
    results = run(-1)
    try:
        run(3)
        failure = ""
    except RankFailedError as error:
        failure = str(error)
    places = [place for place, _ in results]
    weights = [of_rank for _, of_rank in results]
    print(json.dumps({"places": places, "weights": weights, "failure": failure}), flush=True)


if __name__ == "__main__":
    main()
