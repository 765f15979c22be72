"""Sending a function to the ranks, and what it returns back: pickles, and what ails them.

With cloudpickle any function can be sent, also one of a notebook. It brings along what it refers
to, hence the two common mistakes: it refers to something that belongs to this process (a tensor,
a session, a Spark context), or it needs a module that the ranks do not find.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["pack_call", "pack_result", "unpack_call"]

# Types that live in one process. Matched by name: whoever has such an object has imported them.
_BOUND = (
    ("tensorflow", "Tensor", "a TensorFlow tensor"),
    ("tensorflow", "EagerTensor", "a TensorFlow tensor"),
    ("tensorflow", "SymbolicTensor", "a TensorFlow tensor"),
    ("tensorflow", "Session", "a TensorFlow session"),
    ("tensorflow", "Graph", "a TensorFlow graph"),
    ("tensorflow", "FuncGraph", "a TensorFlow graph"),
    ("tensorflow", "DatasetV2", "a tf.data.Dataset"),
    ("tensorflow", "ResourceVariable", "a TensorFlow variable"),
    ("pyspark", "SparkContext", "the Spark context"),
    ("pyspark", "SparkSession", "the Spark session"),
    ("pyspark", "DataFrame", "a Spark DataFrame"),
)
_DEPTH = 3  # functions within functions that are searched


def pack_call(
    function: Callable, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> bytes:
    """Returns the call as bytes.

    Raises:
        TypeError: ``function`` cannot be called.
        ValueError: the function or an argument cannot be sent; the message names the culprit.
    """
    if not callable(function):
        raise TypeError(f"expected a function to run, not {function!r}")
    culprits = [
        *_bound_in_function(function, _DEPTH),
        *(f"argument {i}, {what}" for i, a in enumerate(args) for what in _bound(a)),
        *(f"argument {k!r}, {what}" for k, a in (kwargs or {}).items() for what in _bound(a)),
    ]
    if culprits:
        raise ValueError(
            f"{_name(function)} cannot be sent to the ranks, since it refers to what lives in this "
            f"process: {'; '.join(culprits)}. Make it inside the function, where each rank makes "
            "its own, or pass the data as NumPy arrays"
        )
    call = function, tuple(args), dict(kwargs or {})
    return _pickled(call, f"{_name(function)} and its arguments")


def unpack_call(content: bytes) -> tuple[Callable, tuple, dict[str, Any]]:
    """The inverse of ``pack_call``, in a rank.

    Raises:
        ImportError: a module that the function needs is not there.
    """
    try:
        return pickle.loads(content)
    except ImportError as error:
        raise ImportError(
            f"the function needs {error.name or 'a module'} ({error}), which this rank does not "
            "find. What is imported outside of the function must be installed where the ranks "
            "run: import it inside the function, and install it there or send it along"
        ) from error


def pack_result(value: Any) -> bytes:
    """Returns what the function has returned, as bytes.

    Raises:
        ValueError: it cannot be pickled.
    """
    culprits = _bound(value)
    if culprits:
        raise ValueError(
            f"the function returns {culprits[0]}, which lives in its process; return NumPy arrays "
            "or numbers (tensor.numpy())"
        )
    return _pickled(value, "what the function returns")


def _pickled(value: Any, what: str) -> bytes:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle  # functions of modules only
    try:
        return pickler.dumps(value)
    except Exception as error:
        hint = "" if pickler is not pickle else "; install cloudpickle to send any function"
        raise ValueError(
            f"{what} cannot be pickled ({type(error).__name__}: {error}){hint}"
        ) from error


def _bound_in_function(function: Any, depth: int) -> list[str]:
    """Describes what of this process a function refers to."""
    if depth == 0 or not inspect.isfunction(function):
        return []
    try:
        scope = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return []
    # Of a module's own function the globals are not sent.
    is_sent = function.__module__ == "__main__" or "<locals>" in function.__qualname__
    named = {**scope.nonlocals, **(scope.globals if is_sent else {})}
    found = []
    for name, value in named.items():
        found += [f"{name!r}, {what}" for what in _bound(value)]
        found += _bound_in_function(value, depth - 1)
    return found


def _bound(value: Any) -> list[str]:
    """One description for a value that lives in this process, or for the first in a container."""
    if isinstance(value, (list, tuple, set)):
        return next((found for found in map(_bound, value) if found), [])
    if isinstance(value, dict):
        return _bound(list(value.values()))
    for base in type(value).__mro__:
        for package, name, what in _BOUND:
            if base.__name__ == name and base.__module__.split(".")[0] == package:
                return [what]
    return []


def _name(function: Any) -> str:
    return f"the function {getattr(function, '__qualname__', function)!r}"
