"""What the tests of runners let ranks do.

Each function is made anew, inside another one, so that it is sent by value: the ranks of a cluster
do not find this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras.runner import RankFailedError


def make_failing() -> Callable[..., int]:
    """``work(culprit, linger)``: that rank (None: no one) fails, and the others wait.

    Its process ends ``linger`` seconds after the failure. Returns the pid.
    """

    def work(culprit: int | None = 1, linger: float = 0.0) -> int:
        import atexit
        import os
        import time

        import hvd_keras as hvd

        hvd.init()
        if hvd.rank() == culprit:
            atexit.register(time.sleep, linger)
            raise KeyError("no such column")
        hvd.barrier()
        return os.getpid()

    return work


def check_failure_of_work(error: RankFailedError, culprit: int = 1) -> None:
    """The error is that of the rank that has failed, with its traceback."""
    assert error.rank == culprit
    assert "KeyError: 'no such column'" in str(error) and "in work" in str(error)


def make_fit() -> Callable[[float, int], tuple[list[float], list[Any]]]:
    """``fit(scale, epochs)``: a real one, on each rank's own data. Returns losses and weights."""

    def fit(scale: float, epochs: int) -> tuple[list[float], list[Any]]:
        import keras
        import numpy as np

        import hvd_keras as hvd

        keras.utils.set_random_seed(1 + hvd.rank())
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        x = np.full((4, 2), scale * (hvd.rank() + 1.0))
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        history = model.fit(x, x[:, :1], epochs=epochs, callbacks=[broadcast], verbose=0)
        return history.history["loss"], model.get_weights()

    return fit
