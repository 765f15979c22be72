"""Giving all ranks of a ``tf.compat.v1`` session the variables of one of them."""

from __future__ import annotations

import socket
from typing import Any

import tensorflow as tf

from hvd_keras import world
from hvd_keras.errors import NotInitializedError
from hvd_keras.objects import broadcast_variables
from hvd_keras.op_calls import device_scope

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_global_variables"]


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Returns the operation that gives every rank the global variables of ``root_rank``.

    Run it in a session, on every rank, after the variables have been initialized or restored::

        broadcast = hvd.broadcast_global_variables(0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(broadcast)

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
        RuntimeError: it was called in eager code, which has no list of all variables.
    """
    world.require_initialized("hvd.broadcast_global_variables()")
    if tf.executing_eagerly() or tf.compat.v1.executing_eagerly_outside_functions():
        raise RuntimeError(
            "hvd.broadcast_global_variables() works in tf.compat.v1 graphs only, since eager code "
            "keeps no list of all variables; use "
            "hvd.broadcast_variables(model.variables, root_rank=0), or, in model.fit, "
            "hvd.callbacks.BroadcastGlobalVariablesCallback(0)"
        )
    return broadcast_variables(_global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives every rank the global variables of ``root_rank`` when its session has been created.

    For ``tf.compat.v1.train.MonitoredTrainingSession``, ``MonitoredSession`` and estimators: the
    values are sent after the session has initialized them or restored them from a checkpoint, so
    that only the root needs a ``checkpoint_dir``. The global step is one of them; where the graph
    has none, the hook makes one, because a session with a ``checkpoint_dir`` makes one too.

    A session that is created again, since it has met an error that TensorFlow takes for a passing
    one, ends here with a RuntimeError if the error was that another rank has died.

    Args:
        root_rank: the rank whose values count, the same on all ranks.
        device: a TensorFlow device for the transfer; '' lets TensorFlow choose.

    Raises:
        NotInitializedError: when the session is created, ``hvd.init()`` has not been called.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None
        # Here already, since the session's own hooks begin before this one, and look for it.
        if not tf.executing_eagerly() and tf.compat.v1.trainable_variables():
            tf.compat.v1.train.get_or_create_global_step()

    def begin(self) -> None:
        if not world.is_initialized():
            raise NotInitializedError(
                "hvd.init() has not been called: BroadcastGlobalVariablesHook needs it, so call it "
                "once at the start of the script."
            )
        tf.compat.v1.train.get_or_create_global_step()
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with device_scope(self.device):
                self.bcast_op = broadcast_variables(_global_variables(), self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        try:
            session.run(self.bcast_op)
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as error:
            # TensorFlow would create the session again, and again, for as long as this lasts.
            raise RuntimeError(
                f"rank {world.rank()} on {socket.gethostname()} cannot get the variables of rank "
                f"{self.root_rank}: {error.message}"
            ) from error


def _global_variables() -> list[Any]:
    """The global variables, in an order that is the same on all ranks."""
    step = tf.compat.v1.train.get_global_step()
    variables = list(tf.compat.v1.global_variables())
    # A saver's hook that one rank alone has may have made the global step before other hooks have
    # made their variables.
    return [v for v in variables if v is not step] + [v for v in variables if v is step]
