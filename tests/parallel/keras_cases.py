"""What the SPMD tests of the Keras part share: small models and data that differ by rank."""

import keras
import numpy as np

import hvd_keras as hvd

hvd.init()


def everywhere(value):
    """The value of every rank, in rank order."""
    return hvd.allgather_object(value, name="test.everywhere")


def assert_same_on_all_ranks(values):
    """Bit for bit."""
    mine = [np.asarray(value) for value in values]
    for rank, theirs in enumerate(everywhere(mine)):
        assert len(theirs) == len(mine)
        for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=f"value {index}, rank {rank}")


def joined_data(batches, batch_size, features=3, seed=0):
    """x and y of all ranks: element r + k * size is rank r's k-th, as hvd.shard deals them out."""
    generator = np.random.default_rng(seed)
    count = batches * batch_size * hvd.size()
    x = generator.normal(size=(count, features)).astype("float32")
    y = (x @ np.arange(1, features + 1) + generator.normal(size=count)).astype("float32")
    return x, y[:, None]


def mlp(*extra, build=True):
    """Two dense layers, with `extra` between them; weights are the same on all ranks."""
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(4, activation="tanh"), *extra, keras.layers.Dense(1)]
    return keras.Sequential(([keras.Input((3,))] if build else []) + layers)


def fill_by_rank(model):
    """Gives the model weights that differ by rank: rank + 1, rank + 1 + 1/8, ..."""
    model.set_weights(
        [
            np.full(w.shape, hvd.rank() + 1 + i / 8, w.dtype)
            for i, w in enumerate(model.get_weights())
        ]
    )


class Probe(keras.callbacks.Callback):
    """Records what the model looks like when its hooks are called."""

    def __init__(self, *hooks):
        super().__init__()
        self.seen = {hook: [] for hook in hooks}
        for hook in hooks:
            setattr(self, hook, self._recorder(hook))

    def _recorder(self, hook):
        def record(*args, **kwargs):
            self.seen[hook].append(self.model.get_weights())

        return record
