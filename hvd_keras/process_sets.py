"""Process sets: groups of ranks that have collectives of their own.

Every rank has to know every process set, whether it belongs to it or not, and all have to add and
remove them in the same order; it is checked that they do. Collectives of sets that have no rank in
common run at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hvd_keras import _library, world

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    "resolve",
]


class ProcessSet:
    """Some of the ranks. It can be used once it is added, by ``hvd.init`` or ``add_process_set``.

    Args:
        ranks_or_comm: the global ranks.

    Attributes:
        process_set_id: None until it is added; 0 is the set of all ranks.
        ranks: the global ranks, ascending.
    """

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        try:
            self._ranks = sorted(int(rank) for rank in ranks_or_comm)
        except TypeError:
            raise TypeError(
                f"a process set is made from a list of ranks, not from {ranks_or_comm!r}"
            ) from None

    @property
    def ranks(self) -> list[int]:
        return list(self._ranks)

    def size(self) -> int:
        """Returns the number of its ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """Returns this rank's place in the set.

        Raises:
            ValueError: this rank does not belong to it.
        """
        if not self.included():
            raise ValueError(f"rank {world.rank()} is not in {self!r}")
        return self.ranks.index(world.rank())

    def included(self) -> bool:
        """Returns whether this rank belongs to it."""
        return world.rank() in self.ranks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self.process_set_id == other.process_set_id and self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash(tuple(self._ranks))

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int]:
        return list(range(world.size())) if world.is_initialized() else []

    def __hash__(self) -> int:
        return 0


global_process_set = _GlobalProcessSet()

# Those that were added, by number; the same on all ranks.
_added: dict[int, ProcessSet] = {}


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set. All ranks of the job have to call it, with the same ranks.

    Returns:
        The process set, now with its number.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: the ranks do not exist or repeat, differ between the callers, the set was added
            before, or there are too many sets (at most 255).
    """
    world.require_initialized("hvd.add_process_set()")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set!r} has been added already")
    _agree("add_process_set", process_set.ranks)
    number = next(i for i in range(1, len(_added) + 2) if i not in _added)
    _call(_library.core.add_process_set, number, process_set.ranks)
    process_set.process_set_id = number
    _added[number] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. All ranks of the job have to call it, when its collectives are done.

    Returns:
        Whether it was there to be removed. The set of all ranks cannot be removed.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        ValueError: the ranks want to remove different ones.
    """
    world.require_initialized("hvd.remove_process_set()")
    number = process_set.process_set_id
    if not number or _added.get(number) is not process_set:
        return False
    _agree("remove_process_set", process_set.ranks)
    _call(_library.core.remove_process_set, number)
    del _added[number]
    process_set.process_set_id = None
    return True


def resolve(process_set: ProcessSet | None, caller: str) -> int:
    """Returns the number of a process set that this rank may use.

    Raises:
        TypeError: it is none.
        ValueError: it has not been added, or this rank does not belong to it.
    """
    if process_set is None or process_set is global_process_set:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"{caller}: process_set={process_set!r} is not a hvd.ProcessSet")
    if process_set.process_set_id is None:
        raise ValueError(
            f"{caller}: {process_set!r} is not in use; call hvd.add_process_set() on all ranks, or "
            "give it to hvd.init(process_sets=[...])"
        )
    if not process_set.included():
        raise ValueError(
            f"{caller}: rank {world.rank()} is not in {process_set!r} and cannot take part"
        )
    return process_set.process_set_id


def known_ids() -> list[int]:
    """Returns the numbers of the process sets in use, 0 for the one of all ranks first."""
    return [0, *sorted(_added)]


def forget_all() -> None:
    """Leaves no process set in use; called by ``hvd.shutdown``."""
    for process_set in _added.values():
        process_set.process_set_id = None
    _added.clear()


def _agree(what: str, ranks: list[int]) -> None:
    # A rank that is about to fail still takes part, or the others would wait for it.
    messages = _library.core.allgather_bytes(json.dumps([what, ranks]).encode(), "process_sets")
    calls = [json.loads(message) for message in messages]
    if all(call == calls[0] for call in calls):
        return
    lines = "".join(f"\n  rank {i}: hvd.{call[0]}({call[1]})" for i, call in enumerate(calls))
    raise ValueError(
        f"all ranks have to add and remove the same process sets in the same order:{lines}"
    )


def _call(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except _library.core.CollectiveError as error:
        raise ValueError(str(error)) from None
