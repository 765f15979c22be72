"""Variables and Python objects: giving every rank those of one of them.

Objects are pickled and travel outside TensorFlow's graphs, so these functions work the same in
eager code, while a graph is being built, and around a ``tf.compat.v1`` session. Only the ranks of
one job exchange pickles.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_keras import _library, world
from hvd_keras.buckets import Piece, make_buckets
from hvd_keras.naming import collective_name
from hvd_keras.op_calls import TYPES, broadcast_tensors
from hvd_keras.process_sets import ProcessSet, global_process_set, resolve

__all__ = [
    "allgather_object",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

# How a message begins: the object's pickle follows, or why it cannot be pickled.
_PICKLED, _FAILED = b"p", b"f"


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Gives every rank the values that the variables have on ``root_rank``.

    Args:
        variables: ``tf.Variable`` or ``keras.Variable`` objects (or a nested structure of them) of
            any type of fixed width; the same shapes and types in the same order on every rank.
        root_rank: the rank whose values are taken.
        process_set: the ranks that take part; this one has to be among them.
        inplace: of no effect; there for Horovod's scripts. The variables are assigned either way.

    Returns:
        None in eager code and in ``tf.function``; the operation to run in a ``tf.compat.v1`` graph.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: a variable is not built yet, so it has no value.
        tf.errors.InvalidArgumentError: the ranks' variables do not fit together.
    """
    del inplace
    settings = world.require_initialized("hvd.broadcast_variables()")
    set_id = resolve(process_set, "hvd.broadcast_variables()")
    targets = [_tf_variable(variable) for variable in tf.nest.flatten(list(variables))]
    values = [_as_movable(tf.convert_to_tensor(target)) for target in targets]
    pieces = [Piece(i, value.dtype.name, _nbytes(value)) for i, value in enumerate(values)]
    base = collective_name("broadcast_variables")
    assigned = []
    for number, bucket in enumerate(make_buckets(pieces, settings.fusion_threshold)):
        received = broadcast_tensors(
            [values[piece.position] for piece in bucket], root_rank, f"{base}.{number}", set_id
        )
        for piece, value in zip(bucket, received, strict=True):
            target = targets[piece.position]
            assigned.append(target.assign(_as_original(value, target)))
    if tf.executing_eagerly() or tf.compat.v1.executing_eagerly_outside_functions():
        return None
    return tf.group(*assigned)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """``broadcast_variables``, under its other name in Horovod; returns the variables."""
    del name
    variables = list(variables)
    broadcast_variables(variables, root_rank, process_set)
    return variables


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that broadcasts the object it is called with; see ``broadcast_object``."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@tf.autograph.experimental.do_not_convert
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns, on every rank, the object of ``root_rank``, pickled and unpickled.

    Args:
        obj: any object that can be pickled; not looked at on the other ranks.
        root_rank: the rank that sends.
        session: Horovod needs one in TF1 scripts; here objects do not pass through a graph, so it
            makes no difference.
        name: the same on all ranks.
        process_set: the ranks that take part; this one has to be among them.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: ``root_rank`` does not exist, or (on every rank) the object cannot be pickled.
    """
    del session
    world.require_initialized("hvd.broadcast_object()")
    set_id = resolve(process_set, "hvd.broadcast_object()")
    _check_root(root_rank, process_set, "hvd.broadcast_object()")
    message = _pack(obj) if world.rank() == root_rank else b""
    received = _library.core.broadcast_bytes(message, root_rank, name or "broadcast_object", set_id)
    return _unpack(received, root_rank)


@tf.autograph.experimental.do_not_convert
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks; otherwise as above."""
    del session
    world.require_initialized("hvd.allgather_object()")
    set_id = resolve(process_set, "hvd.allgather_object()")
    messages = _library.core.allgather_bytes(_pack(obj), name or "allgather_object", set_id)
    return [_unpack(message, rank) for rank, message in enumerate(messages)]


def _pack(obj: Any) -> bytes:
    # A failure is sent like an object: the other ranks wait for one.
    try:
        return _PICKLED + pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle lets through whatever __reduce__ raises
        return _FAILED + f"{type(error).__name__}: {error}".encode()


def _unpack(message: bytes, rank: int) -> Any:
    if message[:1] == _FAILED:
        raise ValueError(
            f"the object of rank {rank} cannot be pickled ({message[1:].decode()}); send its "
            "parts that can, for example numpy arrays instead of tensors of a graph"
        )
    return pickle.loads(memoryview(message)[1:])


def _check_root(root_rank: int, process_set: ProcessSet, caller: str) -> None:
    if root_rank not in process_set.ranks:
        raise ValueError(
            f"{caller}: root_rank {root_rank} does not exist; expected one of {process_set.ranks}"
        )


def _tf_variable(variable: Any) -> Any:
    value = getattr(variable, "value", None)
    # keras.Variable has the tf.Variable in .value; in tf.Variable, .value is a method.
    target = variable if value is None or callable(value) else value
    if not hasattr(target, "assign"):
        raise ValueError(
            f"{variable!r} is not a variable with a value; build the model or the optimizer that "
            "it belongs to before its variables are broadcast"
        )
    return target


def _as_movable(value: tf.Tensor) -> tf.Tensor:
    if value.dtype not in TYPES:  # the complex and quantized ones
        return tf.bitcast(value, tf.uint8)
    return value


def _as_original(value: tf.Tensor, target: Any) -> tf.Tensor:
    return value if value.dtype == target.dtype else tf.bitcast(value, target.dtype)


def _nbytes(value: tf.Tensor) -> int:
    count = value.shape.num_elements()
    return 0 if count is None else count * value.dtype.size
