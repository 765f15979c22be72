"""Process sets: hvd_keras's own, with the errors that Horovod scripts expect."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_keras import process_sets
from hvd_keras.compat.errors import translated
from hvd_keras.process_sets import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """``hvd_keras.add_process_set``."""
    with translated():
        return process_sets.add_process_set(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """``hvd_keras.remove_process_set``."""
    with translated():
        return process_sets.remove_process_set(process_set)
