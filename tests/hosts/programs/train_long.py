"""A training that goes on until something ends it: ``train_long.py FOLDER [VICTIM]``.

Each rank touches ``step.<r>`` in the folder when it has done some steps, and writes the error that
ends its training to ``error.<r>``. Rank VICTIM kills itself as soon as there is a file ``kill``.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import keras
import numpy as np

import hvd_keras as hvd

WARM = 5  # steps after which the training counts as running


class Watch(keras.callbacks.Callback):
    def __init__(self, folder: Path, victim: int) -> None:
        super().__init__()
        self.folder, self.victim, self.steps = folder, victim, 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps += 1
        if self.steps == WARM:
            (self.folder / f"step.{hvd.rank()}").touch()
        if hvd.rank() == self.victim and (self.folder / "kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder, victim = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
    hvd.init()
    rank = hvd.rank()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4)), "mse")
    x = np.random.default_rng(rank).normal(size=(4096, 64)).astype("float32")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Watch(folder, victim)]
    try:
        # Hours, if nothing comes in between.
        model.fit(x, x[:, :1], batch_size=8, epochs=10**5, verbose=0, callbacks=callbacks)
    except Exception:
        # Elsewhere first: who looks for the file finds all of it.
        draft = folder / f"draft.{rank}"
        draft.write_text(traceback.format_exc())
        draft.rename(folder / f"error.{rank}")
        raise


if __name__ == "__main__":
    main()
