"""Exceptions that hvd_keras raises itself.

Errors of the operations are TensorFlow's own (``tf.errors.InvalidArgumentError`` and its kin).
"""

from __future__ import annotations

from typing import Any

__all__ = ["LibraryError", "NotInitializedError"]


class NotInitializedError(RuntimeError, ValueError):
    """Something that needs the other ranks was called before ``hvd.init()``.

    It is a ``ValueError`` too, because that is what Horovod raises in this case.
    """

    # AutoGraph raises errors anew, and keeps the class of those that are made like an Exception.
    __init__ = Exception.__init__


class LibraryError(ImportError):
    """The op library is missing, or was built for another TensorFlow or Python."""


def not_implemented(function: str, argument: str, value: Any, remedy: str) -> ValueError:
    """Returns the error for an argument value that Horovod has and this release has not."""
    return ValueError(f"{function} does not support {argument}={value!r} in this release; {remedy}")
