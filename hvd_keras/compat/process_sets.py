"""Process sets, as far as the rest of the package has them."""

from __future__ import annotations

from typing import Any

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

try:
    from hvd_keras.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
except ModuleNotFoundError:
    global_process_set: Any = object()  # type: ignore[no-redef]
    ProcessSet = add_process_set = remove_process_set = None  # type: ignore
