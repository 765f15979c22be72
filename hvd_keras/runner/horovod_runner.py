"""HorovodRunner, as Databricks' guide describes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras.runner.local import quiet, run

__all__ = ["HorovodRunner"]

VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """Runs a training function as a distributed job, on this machine or on Spark.

    Args:
        np: the number of ranks. Negative: that many processes on this machine, without Spark.
            Positive: that many tasks of a Spark job in barrier mode, which start together; an error
            where the cluster has fewer slots. 0: as many as it has.
        driver_log_verbosity: "all" shows what all ranks print; "log_callback_only" (the default)
            what ``LogCallback`` and ``log_to_driver`` send.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise TypeError(f"np is {np!r}; expected a whole number")
        if driver_log_verbosity not in VERBOSITIES:
            raise ValueError(
                f"driver_log_verbosity is {driver_log_verbosity!r}; expected one of "
                f"{', '.join(map(repr, VERBOSITIES))}"
            )
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable, **kwargs: Any) -> Any:
        """Runs ``main(**kwargs)`` on all ranks.

        ``main`` and its arguments are pickled with cloudpickle, so it must not refer to tensors,
        sessions or the Spark context of this process, and imports what it needs itself.

        Returns:
            What it has returned on rank 0.

        Raises:
            ValueError: it cannot be sent, and why; or there are too few slots.
            RankFailedError: a rank has failed; with its traceback.
        """
        shows_all = self.driver_log_verbosity == "all"
        if self.num_processor < 0:
            output = {} if shows_all else quiet()
            return run(main, kwargs=kwargs, np=-self.num_processor, **output)[0]
        from hvd_keras.runner import spark  # late: it needs pyspark

        num_proc = self.num_processor or None
        return spark.run(main, kwargs=kwargs, num_proc=num_proc, show_output=shows_all)[0]
