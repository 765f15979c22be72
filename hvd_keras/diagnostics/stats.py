"""Counters of what this rank has exchanged."""

from __future__ import annotations

from hvd_keras import _library, world

__all__ = ["stats"]


def stats() -> dict[str, int]:
    """Counts what this rank has exchanged since ``hvd.init()``. Costs next to nothing.

    Differences between two calls say what a step costs, for example
    ``messages_per_step = (after["messages"] - before["messages"]) / steps``.

    Returns:
        ``collectives``: executed, those that failed included; ``failures``: of them; ``bytes``: of
        this rank's inputs. ``planned``: collectives of several hosts that were executed by plan.
        ``messages`` and ``message_bytes``: data sent by this rank to other hosts.
        ``control_messages``: sent to agree on what is executed, by the first rank of each host, and
        0 on the others; a step that repeats itself sends none. ``sleeps`` and ``wakes``: system
        calls to wait for another rank of this host, and to wake one.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    world.require_initialized("hvd.stats()")
    return dict(_library.core.stats())
