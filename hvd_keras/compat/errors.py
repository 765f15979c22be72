"""The exceptions that Horovod scripts expect, and their making from those of hvd_keras."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from hvd_keras.errors import NotInitializedError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "as_horovod_error",
    "translated",
]

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective could not be completed, because a rank has died or the job is ending."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed. Nothing here raises it: the ranks are fixed.

    Attributes:
        skip_sync: whether the state need not be sent to the ranks again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """The installed packages do not fit the ones that the library was built for.

    Attributes:
        name: the package.
        version: what is installed.
        installed_version: what the library was built for.
    """

    def __init__(self, name: str, version: Any, installed_version: Any) -> None:
        super().__init__(
            f"{name} is installed in version {version}, but the library was built for "
            f"{installed_version}"
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version


for _class in (HorovodInternalError, HostsUpdatedInterrupt, HorovodVersionMismatchError):
    _class.__module__ = "horovod.common.exceptions"


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises, for errors of hvd_keras, what Horovod scripts catch.

    - ValueError, where ``init`` has not been called;
    - HorovodInternalError, which is a ``tf.errors.AbortedError`` too, where a rank has died;
    - ``tf.errors.FailedPreconditionError``, which is an ``InvalidArgumentError`` too, where the
      ranks' tensors do not fit together.
    """
    try:
        yield
    except Exception as error:
        horovod_error = as_horovod_error(error)
        if horovod_error is error:
            raise
        raise horovod_error from error


def as_horovod_error(error: Exception) -> Exception:
    """Returns the error that Horovod scripts expect for it, or itself."""
    if isinstance(error, HorovodInternalError):
        return error
    if isinstance(error, NotInitializedError):
        return ValueError(NOT_INITIALIZED)
    if isinstance(error, RuntimeError):
        cause = error.__cause__
        died = getattr(error, "code", None) == "Aborted" or _is(cause, "AbortedError")
        return HorovodInternalError(str(error)) if died else error
    if _is(error, "AbortedError"):
        return _tf_classes()[0](*_arguments(error))
    if _is(error, "InvalidArgumentError") and not _is(error, "FailedPreconditionError"):
        return _tf_classes()[1](*_arguments(error))
    return error


def _is(error: Any, name: str) -> bool:
    # By name: whoever has such an error has imported TensorFlow, others need not.
    return any(
        base.__name__ == name and base.__module__.startswith("tensorflow")
        for base in type(error).__mro__
    )


def _arguments(error: Any) -> tuple:
    return error.node_def, error.op, error.message


@functools.cache
def _tf_classes() -> tuple[type, type]:
    import tensorflow as tf

    class PeerDiedError(HorovodInternalError, tf.errors.AbortedError):
        """A rank has died while a collective was under way."""

        __init__ = tf.errors.AbortedError.__init__
        __str__ = tf.errors.OpError.__str__

    class MismatchError(tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError):
        """What the ranks have sent does not fit together."""

        __init__ = tf.errors.FailedPreconditionError.__init__

    for cls in (PeerDiedError, MismatchError):
        cls.__qualname__ = cls.__name__
    return PeerDiedError, MismatchError


def __getattr__(name: str) -> Any:  # for pickles of these errors
    if name in ("PeerDiedError", "MismatchError"):
        return _tf_classes()[name == "MismatchError"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
