"""Counters of what this rank has exchanged, and of the time it took."""

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

        Times, in nanoseconds. ``exposed_ns``: the program has waited for collectives and done
        nothing else, as far as its calls tell: from its last call until none was pending. The time
        between two buckets of one backward pass is not counted, since the pass goes on meanwhile;
        in a step it is mostly that from the call of the last bucket to its end. ``waited_ns``: from
        each call until all ranks had called. ``late_ns``: from the first rank of this host to call
        a collective, to this one. ``last``: collectives that this rank was the last to call;
        where hosts follow a plan, the last of its host.
        ``timeline_dropped``: records that the timeline lacks.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    world.require_initialized("hvd.stats()")
    return dict(_library.core.stats())
