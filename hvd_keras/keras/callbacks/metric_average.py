"""MetricAverageCallback: the metrics of all ranks as if one process had seen all data."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import keras
import numpy as np

from hvd_keras import collectives, objects, world
from hvd_keras.keras import _peers, _values
from hvd_keras.keras.callbacks._base import Callback

__all__ = ["MetricAverageCallback", "average_logs"]

_RULES = ("sum", "mean", "only_first_replica")


class MetricAverageCallback(Callback):
    """At the end of each epoch, puts the metrics over all ranks' data into ``logs``.

    Put it before other callbacks: those after it, and ``History``, see the same values on every
    rank (so that ``EarlyStopping`` and the like decide alike), and ``on_train_end`` too.

    A metric is computed from its *state*, summed over ranks: a mean's total and count, AUC's and
    Precision's counts, a confusion matrix. The result is what one process would get for all data,
    however unevenly it is divided, for training and for ``val_`` metrics. The rules:

    - Each state variable is reduced as its ``aggregation`` says, which Keras metrics declare:
      "sum" (the default of ``Metric.add_variable``), "mean" or "only_first_replica". With "none"
      there is no rule and an error. A metric of one's own whose state is no sum, a maximum for
      instance, must not leave the default there.
    - The metric objects keep their own rank's state; only ``logs`` changes.
    - A value in ``logs`` that does not come from a metric's state (another callback's, or what a
      custom ``train_step`` returns) is replaced by its unweighted mean over ranks. So is a metric
      whose state has changed since it was logged, with a warning: this happens when a callback
      placed before this one calls ``evaluate``.
    - What is no number stays as it is.
    - In the ``tf.compat.v1`` graphs of Keras 2 all values are replaced by their unweighted means.

    Under ``hvd.Strategy`` it does nothing: there the metrics are those of all ranks already.

    The ranks exchange data in ``on_epoch_end`` only, which Keras calls in its main thread.

    Args:
        device: accepted for Horovod's sake; the few numbers are reduced on the CPU.

    Raises (on every rank, from ``fit``):
        ValueError: the ranks do not log the same metrics, e.g. because one validates and another
            does not; or a metric's state has no rule.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device
        self._in_epoch = False
        self._train: _Snapshot | None = None
        self._validation: _Snapshot | None = None
        self._last: dict[str, Any] = {}

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._in_epoch = not _peers.is_replicated(self.model)
        self._train = self._validation = None

    # Validation uses the same metric objects as training: fit resets them after on_test_begin.
    def on_test_begin(self, logs: dict | None = None) -> None:
        if self._in_epoch and not _values.in_graph():
            self._train = self._train or _Snapshot(self.model)

    def on_test_end(self, logs: dict | None = None) -> None:
        if self._in_epoch and not _values.in_graph():
            self._validation = _Snapshot(self.model)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._in_epoch = False
        if logs is None or world.size() == 1 or _peers.is_replicated(self.model):
            return
        snapshots = {}
        if not _values.in_graph():
            snapshots[""] = self._train or _Snapshot(self.model)
        if self._validation is not None:
            snapshots["val_"] = self._validation
        self._last = _average(self.model, epoch, logs, snapshots)
        logs.update(self._last)

    def on_train_end(self, logs: dict | None = None) -> None:
        # Keras hands over the dictionary from before on_epoch_end.
        if logs is not None:
            logs.update({key: value for key, value in self._last.items() if key in logs})


class _Snapshot:
    """The state of a model's metrics at one moment, and the values that follow from it."""

    def __init__(self, model: keras.Model) -> None:
        self.variables = _metric_variables(model)
        self.state = [np.asarray(variable.numpy()) for variable in self.variables]
        self.values = _current_values(model)

    def layout(self) -> list[tuple]:
        """What must agree among ranks for their states to be added."""
        return [
            (v.name, s.shape, str(s.dtype), _aggregation(v))
            for v, s in zip(self.variables, self.state, strict=True)
        ]

    def values_for(self, model: keras.Model, state: list[np.ndarray]) -> dict[str, Any]:
        """The metrics' values for another state; the metrics themselves stay as they are."""
        before = [np.asarray(variable.numpy()) for variable in self.variables]
        try:
            _assign(self.variables, state)
            return _current_values(model)
        finally:
            _assign(self.variables, before)


def _aggregation(variable: Any) -> str:
    # Older releases of Keras 3 do not say, and their metrics add.
    aggregation = getattr(variable, "aggregation", "sum")
    # In Keras 2 it is a tf.VariableAggregation.
    return aggregation if isinstance(aggregation, str) else aggregation.name.lower()


def _metric_variables(model: keras.Model) -> list[Any]:
    unique = {id(v): v for metric in model.metrics for v in metric.variables}
    return list(unique.values())


def _current_values(model: keras.Model) -> dict[str, Any]:
    return {name: _plain(value) for name, value in model.get_metrics_result().items()}


def _plain(value: Any) -> Any:
    """A float for a scalar, an array for a vector, and None for what is no number."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        array = np.asarray(keras.ops.convert_to_numpy(value), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return float(array) if array.ndim == 0 else array


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def average_logs(model: keras.Model, logs: dict[str, Any]) -> dict[str, Any]:
    """Returns ``logs`` of an evaluation that has just ended, over all ranks; all must call it."""
    return {**logs, **_average(model, 0, logs, {"": _Snapshot(model)})}


def _average(
    model: keras.Model, epoch: int, logs: dict[str, Any], snapshots: dict[str, _Snapshot]
) -> dict[str, Any]:
    """Returns the values over all ranks for each key of ``logs`` that is a number."""
    mine = {
        "epoch": epoch,
        "values": {key: _plain(value) for key, value in logs.items()},
        "from_state": _from_state(logs, snapshots),
        "layout": {prefix: snapshot.layout() for prefix, snapshot in snapshots.items()},
    }
    peers = _peers.gather(mine, "metrics")
    _require_same_metrics(peers)
    from_state = [key for key in logs if all(key in peer["from_state"] for peer in peers)]
    _warn_of_changed_state(logs, from_state, snapshots)
    exact = _values_of_all(model, snapshots) if snapshots else {}
    averaged = {
        key: exact[key] if key in from_state else _mean([peer["values"][key] for peer in peers])
        for key in logs
    }
    return {key: value for key, value in averaged.items() if value is not None}


def _from_state(logs: dict[str, Any], snapshots: dict[str, _Snapshot]) -> set[str]:
    """The keys whose logged value is the one that follows from the metrics' state."""
    known = {
        prefix + name: value
        for prefix, snapshot in snapshots.items()
        for name, value in snapshot.values.items()
    }
    return {key for key, value in logs.items() if key in known and _close(known[key], value)}


def _close(value: Any, logged: Any) -> bool:
    # In a graph and out of it the same metric may differ in its last bits.
    logged = _plain(logged)
    if value is None or logged is None or np.shape(value) != np.shape(logged):
        return False
    return bool(np.allclose(value, logged, rtol=1e-4, atol=1e-7, equal_nan=True))


def _require_same_metrics(peers: list[dict[str, Any]]) -> None:
    """Raises the same error on all ranks unless they log the same."""
    keys = [tuple(sorted(peer["values"])) for peer in peers]
    if len(set(keys)) > 1:
        raise ValueError(
            "MetricAverageCallback: the ranks log different metrics: "
            f"{_peers.by_rank(', '.join(some) or 'nothing' for some in keys)}. Metrics, and "
            "validation data, must be given on all ranks or on none, and every rank needs at least "
            "one batch of each"
        )
    if len({peer["epoch"] for peer in peers}) > 1:
        raise ValueError(
            "MetricAverageCallback: the ranks are in different epochs: "
            f"{_peers.by_rank(peer['epoch'] for peer in peers)}. They must start with the same "
            "initial_epoch and make the same number of steps"
        )
    layouts = [str(peer["layout"]) for peer in peers]
    if len(set(layouts)) > 1:
        raise ValueError(
            "MetricAverageCallback: the metrics' state (name, shape, dtype, aggregation) differs: "
            f"{_peers.by_rank(layouts)}"
        )
    for name, _, _, aggregation in itertools.chain(*peers[0]["layout"].values()):
        if aggregation not in _RULES:
            raise ValueError(
                f"MetricAverageCallback: the metric variable {name!r} has aggregation="
                f"{aggregation!r}, so it is not known how to reduce it over ranks; expected one of "
                f"{', '.join(_RULES)}, e.g. self.add_variable(..., aggregation='sum')"
            )


def _warn_of_changed_state(
    logs: dict[str, Any], from_state: list[str], snapshots: dict[str, _Snapshot]
) -> None:
    changed = [
        key
        for key in logs
        if key not in from_state
        and any(
            prefix + name == key
            for prefix, snapshot in snapshots.items()
            for name in snapshot.values
        )
    ]
    if changed:
        warnings.warn(
            f"MetricAverageCallback: the state of {', '.join(changed)} is not the one from which "
            "the logged value was computed (did a callback before this one call evaluate()?). "
            "The unweighted mean over ranks is logged instead. Put MetricAverageCallback first.",
            stacklevel=2,
        )


def _values_of_all(model: keras.Model, snapshots: dict[str, _Snapshot]) -> dict[str, Any]:
    """Each metric's value for the state of all ranks."""
    states = _reduce(
        [
            (_aggregation(v), state)
            for snapshot in snapshots.values()
            for v, state in zip(snapshot.variables, snapshot.state, strict=True)
        ]
    )
    values: dict[str, Any] = {}
    for prefix, snapshot in snapshots.items():
        own, states = states[: len(snapshot.state)], states[len(snapshot.state) :]
        results = snapshot.values_for(model, own)
        values.update({prefix + name: value for name, value in results.items()})
    # Computed everywhere, but one rank's values count: on unlike machines the last bits may differ.
    return objects.broadcast_object(values, root_rank=0, name="hvd.callbacks.metrics.values")


def _reduce(parts: list[tuple[str, np.ndarray]]) -> list[np.ndarray]:
    """Reduces (aggregation, array) pairs over ranks, in one collective per kind of number."""
    flat: dict[str, list[np.ndarray]] = {"float64": [np.zeros(0)], "int64": [np.zeros(0, np.int64)]}
    for aggregation, array in parts:
        flat[_wide(array)].append(_contribution(aggregation, array).ravel())
    total = {wide: _sum(np.concatenate(arrays).astype(wide)) for wide, arrays in flat.items()}
    reduced = []
    for aggregation, array in parts:
        wide = _wide(array)
        own, total[wide] = total[wide][: array.size], total[wide][array.size :]
        own = own / world.size() if aggregation == "mean" else own
        reduced.append(own.reshape(array.shape).astype(array.dtype))
    return reduced


def _sum(array: np.ndarray) -> np.ndarray:
    name = f"hvd.callbacks.metrics.{array.dtype.name}"
    return np.asarray(collectives.allreduce(array, op=collectives.Sum, name=name))


def _wide(array: np.ndarray) -> str:
    # bfloat16 is not among NumPy's own kinds of float.
    return "int64" if array.dtype.kind in "iub" else "float64"


def _contribution(aggregation: str, array: np.ndarray) -> np.ndarray:
    keep = aggregation != "only_first_replica" or world.rank() == 0
    return array if keep else np.zeros_like(array)


def _mean(values: list[Any]) -> Any:
    """The mean of one value per rank; exactly the value where all agree, None for no numbers."""
    if any(value is None for value in values) or len({np.shape(value) for value in values}) > 1:
        return None
    if all(np.array_equal(value, values[0], equal_nan=True) for value in values):
        return values[0]
    mean = np.mean(np.stack(values), axis=0)
    return float(mean) if mean.ndim == 0 else mean
