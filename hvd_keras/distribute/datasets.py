"""Data sets of a strategy: each rank's part of the batches.

``experimental_distribute_dataset`` is given the same data set on every rank, batched for all ranks
together. How it is divided, ``tf.data.Options.experimental_distribute.auto_shard_policy`` says:

- AUTO and DATA: every batch is cut into as many parts as there are ranks, in the order of the
  ranks, of sizes that differ by one at most. So all ranks make equally many steps, and together
  they see exactly the batches of the data set. (TensorFlow's own strategies for several workers
  deal out whole batches. AUTO there means FILE where the data set reads files.)
- FILE, HINT: TensorFlow's rewriting of the data set: each rank reads files of its own, or what
  ``shard(tf.data.experimental.SHARD_HINT, ...)`` says.
- OFF: each rank reads all of it.

With the last three a rank's batches are cut into parts as well, which it takes one after another,
so that a step always has one batch of all ranks together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras import objects
from hvd_keras.distribute.ranks import Ranks
from hvd_keras.distribute.shuffling import new_epoch
from hvd_keras.keras.data import shuffle_seeds

__all__ = ["DistributedDataset", "distribute", "from_function"]

_Policy = tf.data.experimental.AutoShardPolicy


# Keras recognizes TensorFlow's own classes, by their name and module.
_Recognized: Any = type(
    "DistributedDataset",
    (tf.distribute.DistributedDataset,),
    {"__module__": "tensorflow.python.distribute.input_lib"},
)


class DistributedDataset(_Recognized):
    """This rank's part of a data set.

    Iterating gives tensors, not ``PerReplica`` values, since a process has one replica. The
    iterator is a ``tf.data.Iterator``; like the data set it can be given to a ``tf.function``.

    Args:
        dataset: what this rank reads.
        on_iter: called when an iterator is made.
    """

    def __init__(self, dataset: tf.data.Dataset, on_iter: Callable[[], None] | None = None) -> None:
        self._dataset = dataset
        self._on_iter = on_iter

    def __iter__(self) -> Iterator[Any]:
        if self._on_iter is not None:
            self._on_iter()
        return iter(self._dataset)

    @property
    def element_spec(self) -> Any:
        """The types and shapes of what this rank gets."""
        return self._dataset.element_spec

    @property
    def cardinality(self) -> int:
        """The number of this rank's steps; negative where it is infinite or unknown."""
        return int(self._dataset.cardinality())

    def __len__(self) -> int:
        return len(self._dataset)

    def reduce(self, initial_state: Any, reduce_func: Callable) -> Any:
        """As ``tf.data.Dataset.reduce``. A ``for`` loop in a ``tf.function`` becomes this."""
        iterator: Any = iter(self)

        def has_value(optional: Any, state: Any) -> tf.Tensor:
            del state
            return optional.has_value()

        def body(optional: Any, state: Any) -> tuple[Any, Any]:
            state = reduce_func(state, optional.get_value())
            return iterator.get_next_as_optional(), state

        # One pass after another: the ranks' collectives have to come in the same order.
        _, final = tf.while_loop(
            has_value,
            body,
            [iterator.get_next_as_optional(), initial_state],
            parallel_iterations=1,
        )
        return final


def distribute(dataset: Any, ranks: Ranks) -> Any:
    """Returns this rank's part of ``dataset``; with one rank ``dataset`` itself.

    Raises:
        TypeError: it is no ``tf.data.Dataset``.
        ValueError: its elements are no batches.
    """
    if isinstance(dataset, DistributedDataset):
        return dataset
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"experimental_distribute_dataset takes a tf.data.Dataset, not a "
            f"{type(dataset).__name__}"
        )
    if ranks.size == 1:
        return dataset
    policy = dataset.options().experimental_distribute.auto_shard_policy
    _check_batched(dataset)
    if policy in (None, _Policy.AUTO, _Policy.DATA):
        _warn_if_shuffled(dataset, ranks)
        part = dataset.map(
            _taking_elements(dataset, lambda element: _part(element, ranks.rank, ranks.size))
        )
    else:
        if policy != _Policy.OFF:
            dataset = _rewritten(dataset, ranks)
        part = _cut(dataset, ranks.size)
    return DistributedDataset(part.prefetch(tf.data.AUTOTUNE), new_epoch())


def from_function(dataset_fn: Callable, ranks: Ranks) -> Any:
    """Returns the data set that ``dataset_fn`` makes for this rank, as it is.

    Raises:
        TypeError: it makes something else.
    """
    context = tf.distribute.InputContext(
        num_input_pipelines=ranks.size,
        input_pipeline_id=ranks.rank,
        num_replicas_in_sync=ranks.size,
    )
    dataset = dataset_fn(context)
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "the function given to distribute_datasets_from_function returned a "
            f"{type(dataset).__name__}; expected a tf.data.Dataset"
        )
    return dataset if ranks.size == 1 else DistributedDataset(dataset)


def _part(element: Any, number: Any, count: int) -> Any:
    """Returns part ``number`` of ``count`` of an element."""

    def cut(leaf: Any) -> Any:
        if not _has_rows(leaf):
            return leaf
        start, size = _bounds(_length(leaf), number, count)
        if isinstance(leaf, tf.SparseTensor):
            others = leaf.dense_shape[1:]
            begin = tf.concat([[start], tf.zeros_like(others)], 0)
            return tf.sparse.slice(leaf, begin, tf.concat([[size], others], 0))
        return leaf[start : start + size]

    return tf.nest.map_structure(cut, element)


def _bounds(rows: Any, number: Any, count: int) -> tuple[Any, Any]:
    """Returns where a part begins and how many rows it has, as ints where all is known."""
    if isinstance(rows, int) and isinstance(number, int):
        least, more = divmod(rows, count)
        return number * least + min(number, more), least + int(number < more)
    rows, number = tf.cast(rows, tf.int64), tf.cast(number, tf.int64)
    least, more = rows // count, rows % count
    return number * least + tf.minimum(number, more), least + tf.cast(number < more, tf.int64)


def _taking_elements(dataset: tf.data.Dataset, function: Callable) -> Callable:
    """Returns ``function``, of an element, as what ``map`` and ``flat_map`` take."""
    if isinstance(dataset.element_spec, tuple):  # map gives its parts one by one
        return lambda *parts: function(parts)
    return function


def _has_rows(leaf: Any) -> bool:
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        return True
    return tf.is_tensor(leaf) and leaf.shape.rank != 0


def _length(leaf: Any) -> Any:
    """Returns the number of rows: an int where it is always the same."""
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if leaf.shape.rank is not None and leaf.shape[0] is not None:
        return int(leaf.shape[0])
    return tf.shape(leaf, out_type=tf.int64)[0]


def _cut(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Returns the parts of each element, one after another, without the empty ones."""

    def parts(element: Any) -> tf.data.Dataset:
        rows = next(_length(leaf) for leaf in tf.nest.flatten(element) if _has_rows(leaf))
        numbers = tf.data.Dataset.range(tf.minimum(tf.cast(rows, tf.int64), count))
        return numbers.map(lambda number: _part(element, number, count))

    return dataset.flat_map(_taking_elements(dataset, parts))


def _rewritten(dataset: tf.data.Dataset, ranks: Ranks) -> tf.data.Dataset:
    from tensorflow.python.data.experimental.ops import distribute as tf_distribute

    return tf_distribute._AutoShardDataset(dataset, ranks.size, ranks.rank, ranks.size)


def _check_batched(dataset: tf.data.Dataset) -> None:
    specs = tf.nest.flatten(dataset.element_spec)
    shapes = [getattr(spec, "shape", None) for spec in specs]
    if not any(shape is not None and shape.rank != 0 for shape in shapes):
        raise ValueError(
            "hvd.Strategy divides each batch of a data set among the ranks, but the elements of "
            f"this one are no batches: {dataset.element_spec}. Call "
            ".batch(<examples of all ranks together>) before"
        )


def _warn_if_shuffled(dataset: tf.data.Dataset, ranks: Ranks) -> None:
    seeds = shuffle_seeds(dataset)
    everywhere = objects.allgather_object(
        seeds, name="strategy.shuffle_seeds", process_set=ranks.process_set
    )
    if (0, 0) in seeds or any(theirs != seeds for theirs in everywhere):
        warnings.warn(
            "each rank takes its part of every batch, but the data set was shuffled without a "
            "seed, or with different ones, so that the ranks' batches differ: some examples are "
            "read twice and others not. Call shuffle(..., seed=...), and before it "
            "keras.utils.set_random_seed() with the same number on all ranks, if at all",
            stacklevel=5,
        )
