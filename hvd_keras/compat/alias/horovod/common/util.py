"""Questions about the installation, and small helpers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "check_extension",
    "check_num_rank_power_of_2",
    "extension_available",
    "gpu_available",
    "num_rank_is_power_2",
    "split_list",
]


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: Any) -> None:
    """Raises ImportError where the library for TensorFlow cannot be loaded."""
    from hvd_keras import _library

    if "tensorflow" not in ext_name:
        raise ImportError(f"{ext_name} is not built: hvd_keras is for TensorFlow and Keras only")
    _library.load()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether there is a library for this framework."""
    try:
        check_extension(ext_base_name)
    except ImportError as error:
        if verbose:
            print(error)
        return False
    return True


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns False: this build of the collectives works in host memory."""
    if verbose:
        print(f"{ext_base_name}: hvd_keras's collectives work in host memory")
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether ``num_rank`` is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Does nothing: Adasum takes any number of ranks here."""


def split_list(items: Sequence[Any], num_parts: int) -> list[Sequence[Any]]:
    """Returns ``num_parts`` lists of nearly equal length, in order."""
    size, more = divmod(len(items), num_parts)
    starts = [part * size + min(part, more) for part in range(num_parts + 1)]
    return [items[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
