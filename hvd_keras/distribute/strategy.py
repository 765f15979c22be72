"""Strategy: what the user makes and calls. How it works is in extended.py."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.compression import Compression
from hvd_keras.distribute.extended import Extended
from hvd_keras.distribute.ranks import Ranks
from hvd_keras.process_sets import ProcessSet, global_process_set

__all__ = ["Strategy"]


class Strategy(tf.distribute.Strategy):
    """A ``tf.distribute`` strategy with one replica in each process.

    It is used as ``tf.distribute.MultiWorkerMirroredStrategy`` is, with Keras 3, whose ``fit`` does
    not work with that one, and in training loops of one's own::

        strategy = hvd.Strategy()
        with strategy.scope():
            model = keras.Sequential([...])
            model.compile("adam", loss="mse", metrics=["mae"])
        model.fit(x, y, batch_size=64, epochs=5)  # 64 is the batch of all ranks together

    Every rank runs the same script. In ``scope()`` variables get the value of the first rank when
    they are created. ``fit``, ``evaluate`` and ``predict`` take the same data on every rank, and
    each rank works on its part of every batch. Gradients are added up over the ranks before they
    are clipped and applied, so that the weights are equal on all ranks, bit for bit, and up to
    rounding those of one process with the same batches.

    With one rank it behaves as TensorFlow's default strategy. See docs/strategy.md for what differs
    from TensorFlow's strategies.

    Args:
        process_set: the ranks that train together; this one has to be among them.
        compression: what gradients of floats travel as, see ``hvd.Compression``.
        sparse_as_dense: make ``tf.IndexedSlices`` dense before they are added up.

    Raises:
        ValueError: this rank is not in ``process_set``, or the set has not been added.
        RuntimeError: eager execution is off.

    ``hvd.init()`` is called if it has not been. Choose the GPU of the process before.
    """

    def __init__(
        self,
        process_set: ProcessSet = global_process_set,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
    ) -> None:
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise RuntimeError(
                "hvd.Strategy needs eager execution, which tf.compat.v1.disable_eager_execution() "
                "or disable_v2_behavior() has turned off; remove that call, or use "
                "hvd_keras.tensorflow.DistributedOptimizer, which works in TF1 graphs"
            )
        from hvd_keras.distribute import keras_hooks  # imports Keras, which imports TensorFlow

        world.init()
        ranks = Ranks(process_set)
        super().__init__(Extended(self, ranks, compression, sparse_as_dense))
        keras_hooks.install()

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that train together."""
        return self.extended.ranks.process_set

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """Tells ``task_type`` ("worker"), ``task_id`` (the rank in the process set) and the others.

        The addresses in its ``cluster_spec()`` are only names: nothing listens there.
        """
        return self.extended.cluster_resolver

    def __copy__(self) -> Strategy:
        return self

    def __deepcopy__(self, memo: Any) -> Strategy:
        return self  # an optimizer or a model that is copied stays in it

    def __reduce__(self) -> Any:
        raise TypeError("hvd.Strategy cannot be pickled; make one in each process")
