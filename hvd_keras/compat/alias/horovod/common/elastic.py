"""States that can be saved, restored and sent to all ranks, as for elastic jobs."""

from hvd_keras.compat.elastic import ObjectState, State, run_fn

__all__ = ["ObjectState", "State", "run_fn"]
