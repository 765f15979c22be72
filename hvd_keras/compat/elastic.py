"""Horovod's elastic interface for a job whose ranks are fixed.

States are saved, restored and synchronized as a script expects. What cannot happen is that ranks
come or go: when one dies the job ends, with HorovodInternalError, and a new one continues from the
script's own checkpoints.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from hvd_keras import objects, world
from hvd_keras.compat.errors import HorovodInternalError, HostsUpdatedInterrupt, as_horovod_error

__all__ = ["ObjectState", "State", "run", "run_fn"]


class State:
    """What a training function keeps: saved in memory, restored, and sent to all ranks.

    Args:
        bcast_object: a function of an object and ``root_rank`` that sends it.
        get_rank: a function that returns the rank.
    """

    def __init__(self, bcast_object: Callable | None = None, get_rank: Any = None) -> None:
        self._bcast_object = bcast_object or objects.broadcast_object
        self._rank = get_rank or world.rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], Any]]) -> None:
        """Adds functions that ``on_reset`` calls."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls ``reset`` and the functions that were registered."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any = None, update_res: Any = None) -> None:
        """Does nothing: the hosts are fixed."""

    def commit(self) -> None:
        """Saves, and looks whether the hosts have changed."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: the hosts are fixed."""

    def save(self) -> None:
        """Keeps a copy for ``restore``."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the ranks have changed."""


class ObjectState(State):
    """A state of Python objects, its attributes.

    Args:
        bcast_object, get_rank: see ``State``.
        **kwargs: the attributes and their first values.
    """

    def __init__(
        self, bcast_object: Callable | None = None, get_rank: Any = None, **kwargs: Any
    ) -> None:
        self._saved_state = kwargs
        for name, value in kwargs.items():
            setattr(self, name, value)
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        if self._saved_state:
            current = {name: getattr(self, name) for name in self._saved_state}
            for name, value in self._bcast_object(current, root_rank=0).items():
                setattr(self, name, value)
        self.save()


def run(func: Callable) -> Callable:
    """Decorates a training function, whose first argument is its state.

    The state is synchronized, then the function runs. Its exceptions come out as they are, except
    that those of a rank's death come as HorovodInternalError, with the state restored to what was
    committed last.
    """
    return run_fn(func, None)


def run_fn(func: Callable, reset: Callable[[], Any] | None) -> Callable:
    """Like ``run``; ``reset`` is called before the function runs again."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as interrupt:  # raised by the script itself
                skip_sync = interrupt.skip_sync
            except Exception as error:
                horovod_error = as_horovod_error(error)
                if isinstance(horovod_error, HorovodInternalError):
                    state.restore()
                    if horovod_error is not error:
                        raise horovod_error from error
                raise
            if reset is not None:
                reset()
            state.on_reset()

    return wrapper
