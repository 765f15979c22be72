"""Spellings of Keras 2 that Horovod scripts are full of, and that Keras 3 has dropped."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import keras

__all__ = ["accept_old_spellings"]


class _CallableList(list):
    """A list that can be called like the method that it was in Keras 2."""

    def __call__(self) -> _CallableList:
        return self


def accept_old_spellings() -> None:
    """Makes Keras 3 take these; does nothing when it is called again.

    - ``model.compile(..., experimental_run_tf_function=False)``, which Horovod needed: the argument
      is left out, with a warning.
    - ``optimizer.variables()``, as in ``hvd.broadcast_variables(optimizer.variables(), 0)``.
    """
    # Where it is defined: loading a model takes a compile() elsewhere for one of the user's own.
    owner = next(cls for cls in keras.Model.__mro__ if "compile" in cls.__dict__)
    if not getattr(owner.compile, "hvd_accepts", False):
        owner.compile = _accepting(owner.compile)
    public = [cls for cls in vars(keras.optimizers).values() if isinstance(cls, type)]
    classes: set[Any] = {base for optimizer in public for base in optimizer.__mro__}
    for cls in classes:
        variables = cls.__dict__.get("variables")
        if isinstance(variables, property) and not hasattr(variables.fget, "hvd_accepts"):
            cls.variables = property(_callable(variables.fget), doc=variables.__doc__)


def _accepting(compile_model: Any) -> Any:
    @functools.wraps(compile_model)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "experimental_run_tf_function" in kwargs:
            del kwargs["experimental_run_tf_function"]
            warnings.warn(
                "Keras 3 has no experimental_run_tf_function, and hvd_keras does not need it; "
                "compile() ignores it",
                stacklevel=2,
            )
        return compile_model(self, *args, **kwargs)

    compile.hvd_accepts = True  # type: ignore[attr-defined]
    return compile


def _callable(get: Any) -> Any:
    @functools.wraps(get)
    def variables(self: Any) -> Any:
        return _CallableList(get(self))

    variables.hvd_accepts = True  # type: ignore[attr-defined]
    return variables
