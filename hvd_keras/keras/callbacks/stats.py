"""StatsCallback: what the exchange with other ranks costs, in ``logs``."""

from __future__ import annotations

from hvd_keras.diagnostics.stats import stats
from hvd_keras.keras import _peers
from hvd_keras.keras.callbacks._base import Callback

__all__ = ["StatsCallback"]

_COUNTED = ("bytes", "collectives", "exposed_ns", "late_ns")


class StatsCallback(Callback):
    """Puts bytes, exposed communication time and lateness into ``logs``.

    So the progress bar, ``History``, and ``TensorBoard``, ``CSVLogger`` and other callbacks after
    this one show them. Give it to ``fit`` on all ranks, after ``MetricAverageCallback``.

    At the end of a batch, of this rank:

    - ``hvd_bytes``: bytes of its tensors that were exchanged;
    - ``hvd_exposed_ms``: how long it waited for collectives and did nothing else, see `hvd.stats`;
    - ``hvd_late_ms``: how long after the first rank of its host it called them, on average.

    At the end of an epoch, the same on all ranks: ``hvd_bytes`` and ``hvd_exposed_ms`` of a batch,
    the mean of the ranks; ``hvd_late_ms`` of the rank that was latest, and ``hvd_late_rank``, which
    one that was. What validation and callbacks exchange at the end of an epoch is not in it.

    Raises (from ``fit``):
        NotInitializedError: ``hvd.init()`` has not been called.
    """

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._begin = self._last = _counters()
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        now = _counters()
        if logs is not None:
            logs.update(_described(self._last, now, 1))
        self._last = now
        self._batches += 1

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        by_rank = _peers.gather(_described(self._begin, self._last, self._batches), "stats")
        if logs is None:
            return
        for name in ("hvd_bytes", "hvd_exposed_ms"):
            logs[name] = sum(some[name] for some in by_rank) / len(by_rank)
        late = [some["hvd_late_ms"] for some in by_rank]
        logs["hvd_late_ms"] = max(late)
        logs["hvd_late_rank"] = late.index(max(late))


def _counters() -> dict[str, int]:
    now = stats()
    return {name: now[name] for name in _COUNTED}


def _described(before: dict[str, int], after: dict[str, int], batches: int) -> dict[str, float]:
    count = {name: after[name] - before[name] for name in _COUNTED}
    return {
        "hvd_bytes": float(count["bytes"]) / max(batches, 1),
        "hvd_exposed_ms": count["exposed_ns"] / 1e6 / max(batches, 1),
        "hvd_late_ms": count["late_ns"] / 1e6 / max(count["collectives"], 1),
    }
