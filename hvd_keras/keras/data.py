"""Each rank reads its own part of a data set: :func:`shard`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_keras import world

__all__ = ["shard", "shuffle_seeds"]

_log = logging.getLogger("hvd_keras")


def shard(
    dataset: Any, rank: int | None = None, size: int | None = None, *, even: bool = True
) -> Any:
    """Returns this rank's part of ``dataset``: elements ``rank, rank + size, rank + 2 * size...``.

    Taking every ``size``-th element (instead of one long stretch per rank) spreads sorted data
    over the ranks, and makes ``size`` ranks with batch B read, batch for batch and unshuffled,
    what one process with batch ``size * B`` reads.

    Args:
        dataset: One of
            - a ``tf.data.Dataset``. Its *elements* are dealt out, whatever they are: call
              ``shard`` before ``shuffle`` and ``batch`` and they are examples; after ``batch``
              they are whole batches (each rank then still has batches of the full batch size).
            - arrays: NumPy arrays, tf.Tensor, tf.RaggedTensor, pandas objects, or anything else
              with a first dimension and slicing, alone or nested in tuples, lists and dicts.
              All must have the same first dimension. ``None`` stays ``None``. NumPy parts are
              views, nothing is copied.
        rank: The part to return. Defaults to ``hvd.rank()``.
        size: The number of parts. Defaults to ``hvd.size()``.
        even: True (for training): every rank gets the same number of elements, so that all make
            the same number of steps; the last ``length % size`` elements are left out. False (for
            validation, where ranks need not keep step): every element is in exactly one part, and
            the parts' sizes differ by at most one.

    Returns:
        The same kind of object or structure as ``dataset``.

    Raises:
        ValueError: ``rank`` is not in ``[0, size)``; arrays differ in length; ``even`` and there
            are fewer elements than ranks.
        TypeError: ``dataset`` holds something that cannot be divided.
    """
    size = world.size() if size is None else int(size)
    rank = world.rank() if rank is None else int(rank)
    if not 0 <= rank < size:
        raise ValueError(f"shard: expected 0 <= rank < size, got rank={rank}, size={size}")
    if isinstance(dataset, tf.data.Dataset):
        return _shard_dataset(dataset, rank, size, even)
    return _shard_arrays(dataset, rank, size, even)


def _even_length(length: int, size: int) -> int:
    if length < size:
        raise ValueError(
            f"shard: {length} elements cannot be divided evenly among {size} ranks; "
            "use fewer ranks, or even=False if some ranks may have none"
        )
    if length % size:
        _log.info("shard: the last %d of %d elements are left out", length % size, length)
    return length - length % size


def _shard_dataset(dataset: tf.data.Dataset, rank: int, size: int, even: bool) -> tf.data.Dataset:
    if size == 1:
        return dataset
    if _is_shuffled_differently(dataset):
        warnings.warn(
            "shard() was called after shuffle() without a seed: each rank shuffles differently, "
            "so the parts overlap and some elements are never read. Call shard() before shuffle().",
            stacklevel=3,
        )
    length = int(dataset.cardinality())
    if not even or length == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if length == tf.data.UNKNOWN_CARDINALITY:
        return _one_of_each_group(dataset, rank, size)
    return dataset.take(_even_length(length, size)).shard(size, rank)


def _one_of_each_group(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """Element ``rank`` of each full group of ``size``: even parts where the length is unknown."""
    is_tuple = isinstance(dataset.element_spec, tuple)

    def pick(*parts: Any) -> tf.data.Dataset:
        group = tf.data.Dataset.zip(parts if is_tuple else parts[0])
        return group.skip(rank).take(1)

    return dataset.window(size, drop_remainder=True).flat_map(pick)


def _is_shuffled_differently(dataset: tf.data.Dataset) -> bool:
    """True if an unseeded shuffle() is upstream. A warning hangs on it, so doubt means False."""
    for step in _upstream(dataset):
        if "Shuffle" in type(step).__name__:
            seeds = (getattr(step, "_seed", None), getattr(step, "_seed2", None))
            return all(seed is not None and int(seed) == 0 for seed in seeds)
    return False


def shuffle_seeds(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
    """Returns the seeds of the calls of shuffle() upstream, as far as they can be found out.

    (0, 0) stands for none. The first of the two follows from the global seed.
    """
    found = []
    for step in _upstream(dataset):
        seeds = [getattr(step, "_seed", None), getattr(step, "_seed2", None)]
        if "Shuffle" in type(step).__name__ and None not in seeds:
            first, second = (int(tf.get_static_value(seed)) for seed in seeds)
            found.append((first, second))
    return found


def _upstream(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    pending = [dataset]
    while pending:
        step = pending.pop()
        yield step
        inputs = getattr(step, "_inputs", None)
        pending.extend(inputs() if callable(inputs) else ())


def _shard_arrays(data: Any, rank: int, size: int, even: bool) -> Any:
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    lengths = [_length(leaf) for leaf in leaves]
    if not lengths:
        raise TypeError(f"shard: expected a tf.data.Dataset or arrays, got {type(data).__name__}")
    if len(set(lengths)) > 1:
        raise ValueError(f"shard: the arrays must have the same length, got lengths {lengths}")
    stop = _even_length(lengths[0], size) if even else lengths[0]
    part = slice(rank, stop, size)
    return tf.nest.map_structure(lambda leaf: None if leaf is None else _take(leaf, part), data)


def _length(leaf: Any) -> int:
    if isinstance(leaf, tf.data.Dataset):
        raise TypeError("shard: combine several data sets first, with tf.data.Dataset.zip")
    shape = getattr(leaf, "shape", None)
    if shape is None or isinstance(leaf, tf.SparseTensor) or not hasattr(leaf, "__getitem__"):
        raise TypeError(
            "shard: expected a tf.data.Dataset, or arrays in tuples, lists and dicts; found a "
            f"{type(leaf).__name__}. Convert it (numpy.asarray, tf.data.Dataset.from_tensor_slices)"
        )
    if len(shape) == 0:
        raise ValueError(f"shard: a scalar cannot be divided among ranks: {leaf!r}")
    return int(shape[0])


def _take(leaf: Any, part: slice) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.gather(leaf, tf.range(part.start, part.stop, part.step))
    if hasattr(leaf, "iloc"):
        return leaf.iloc[part]
    return leaf[part]
