"""Small helpers that scripts use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

__all__ = ["refs_to_vars", "vars_to_refs"]


def vars_to_refs(variables: Iterable[Any]) -> tuple[Any, ...]:
    """Returns references of the variables, which can be keys of a dictionary."""
    return tuple(v.ref() for v in variables)


def refs_to_vars(refs: Iterable[Any]) -> list[Any]:
    """Returns the variables of such references."""
    return [ref.deref() for ref in refs]


def _executing_eagerly() -> bool:
    return tf.executing_eagerly()


def _make_subgraph(function: Callable) -> Callable:
    return tf.function(function)
