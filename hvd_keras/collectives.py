"""The collectives: each is called on every rank, with tensors that fit together.

They work in eager code, in ``tf.function``, in ``tf.compat.v1`` graphs, and have gradients
(see op_gradients.py for the convention). Where the ranks' tensors do not fit together, every rank
gets ``tf.errors.InvalidArgumentError``, which says what each of them sent; where a rank has died,
the others get ``tf.errors.AbortedError``.

This file has those that only move data; those that compute are in reductions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import _library, op_calls, world
from hvd_keras.naming import collective_name
from hvd_keras.op_calls import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather_tensors,
    alltoall_tensor,
    broadcast_tensors,
    by_type,
    to_tensor,
)
from hvd_keras.process_sets import ProcessSet, global_process_set, resolve
from hvd_keras.reductions import (
    allreduce,
    at_least_vector,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]

# Functions that a user calls carry do_not_convert: AutoGraph, which rewrites the Python code that a
# tf.function calls, has nothing to do in them.


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Joins the ranks' tensors along the first dimension, in the order of the ranks.

    Args:
        tensor: as for ``allreduce``, but the first dimension may differ between ranks (0 is
            allowed). A scalar counts as a vector of one element, so that the result has one
            element per rank.
        name, ignore_name_scope, process_set: as for ``allreduce``.

    Returns:
        A tensor whose first dimension is the sum of the ranks' first dimensions.

    Raises:
        NotInitializedError, TypeError, ValueError: as for ``allreduce``.
    """
    (result,) = grouped_allgather(
        [tensor], name or "allgather", ignore_name_scope or not name, process_set
    )
    return result


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Like ``allgather`` of each of ``tensors``, but all of one type travel together."""
    world.require_initialized("hvd.allgather()")
    set_id = resolve(process_set, "hvd.allgather()")
    values = [at_least_vector(to_tensor(tensor, "hvd.allgather()")) for tensor in tensors]
    full_name = collective_name("grouped_allgather", name, ignore_name_scope=ignore_name_scope)
    results: list[Any] = [None] * len(values)
    for number, members in enumerate(by_type(values)):
        part_name = f"{full_name}.{number}" if number else full_name
        outputs = allgather_tensors([values[i] for i in members], part_name, set_id)
        for i, output in zip(members, outputs, strict=True):
            results[i] = output
    return results


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns, on every rank, the tensor of ``root_rank``.

    Args:
        tensor: as for ``allreduce``, but no ``tf.IndexedSlices``.
        root_rank: the rank that sends, the same on all ranks: a global rank, also in a process set.
        name, ignore_name_scope, process_set: as for ``allreduce``.

    Returns:
        A tensor of the type and shape of ``tensor``.

    Raises:
        NotInitializedError, TypeError, ValueError: as for ``allreduce``.
    """
    world.require_initialized("hvd.broadcast()")
    set_id = resolve(process_set, "hvd.broadcast()")
    value = to_tensor(tensor, "hvd.broadcast()")
    full_name = collective_name("broadcast", name, ignore_name_scope=ignore_name_scope)
    (result,) = broadcast_tensors([value], root_rank, full_name, set_id)
    return result


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends a part of the tensor to each rank, and joins what the ranks send to this one.

    Args:
        tensor: as for ``allgather``.
        splits: how many rows each rank gets, in rank order: integers of shape ``[n]`` whose sum is
            the tensor's first dimension. None sends the same number to each, and the first
            dimension has to be a multiple of ``n``.
        name, ignore_name_scope, process_set: as for ``allreduce``.

    Returns:
        The rows that came, in rank order; with ``splits`` also how many came from each rank, int32
        of shape ``[n]`` (without the ranks that have joined, see ``join``).

    Raises:
        NotInitializedError, TypeError, ValueError: as for ``allreduce``.
        tf.errors.InvalidArgumentError: ``splits`` does not fit the tensor; on every rank.
    """
    world.require_initialized("hvd.alltoall()")
    set_id = resolve(process_set, "hvd.alltoall()")
    value = at_least_vector(to_tensor(tensor, "hvd.alltoall()"))
    full_name = collective_name("alltoall", name, ignore_name_scope=ignore_name_scope)
    if splits is None:
        ranks = process_set.size()
        # Rounded down: what does not divide evenly is an error of the operation, on all ranks.
        even = tf.fill([ranks], tf.shape(value, out_type=tf.int64)[0] // ranks)
        return alltoall_tensor(value, even, full_name, set_id)[0]
    rows = tf.convert_to_tensor(splits)
    if not rows.dtype.is_integer:
        raise TypeError(f"splits of hvd.alltoall() are {rows.dtype.name}; expected integers")
    output, received = alltoall_tensor(value, tf.cast(rows, tf.int64), full_name, set_id)
    return output, tf.cast(received, tf.int32)


@tf.autograph.experimental.do_not_convert
def barrier(
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    timeout: float | None = None,
) -> tf.Operation | None:
    """Waits until every rank has come to it.

    In eager code it returns when all are there; in a ``tf.function`` it runs in the order of the
    function's other side effects; in a ``tf.compat.v1`` graph it returns the operation to run.

    Args:
        name: matches the call across ranks; None for a name that counts the calls.
        process_set: the ranks that take part; this one has to be among them.
        timeout: seconds to wait for the others; None for ever. If it is over, the ranks that have
            come get an error, and the next barrier of the name is a new one.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: ``timeout`` is not greater than 0.
        tf.errors.DeadlineExceededError: the time is over; the message names the missing ranks,
            with their hosts and process ids.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; expected seconds greater than 0, or None")
    world.require_initialized("hvd.barrier()")
    set_id = resolve(process_set, "hvd.barrier()")
    return op_calls.barrier(collective_name("barrier", name), set_id, timeout or 0.0)


@tf.autograph.experimental.do_not_convert
def join(process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Lets the other ranks go on without this one, and waits until all have joined.

    A rank calls it when it has no data left. From then on the collectives of the others, of every
    kind, do not wait for it: an average is that of the ranks which have not joined, gathered
    tensors have no rows of those which have, and a broadcast from one of them is an error.

    Returns:
        The rank that joined last, an int32 scalar.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    world.require_initialized("hvd.join()")
    set_id = resolve(process_set, "hvd.join()")
    return op_calls.join(collective_name("join"), set_id)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks in a process set when the graph runs: an int32 scalar.

    It is -1 where ``hvd.init()`` has not been called, and -3 where the process set does not exist.
    """
    return _library.ops.hvd_size(process_set=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this rank belongs to the process set, else 0; errors as in ``size_op``."""
    return _library.ops.hvd_process_set_included(process_set=process_set_id, name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """The rank when the graph runs: an int32 scalar, -1 where ``hvd.init()`` was not called."""
    return _library.ops.hvd_rank(name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Like ``rank_op``, of ``hvd.local_rank()``."""
    return _library.ops.hvd_local_rank(name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Like ``rank_op``, of ``hvd.local_size()``."""
    return _library.ops.hvd_local_size(name=name)
