"""The timeline and the counters of a fit; see also tests/launch/test_launch_timeline.py."""

import csv
import json
import time

import keras
from keras_cases import everywhere, joined_data, mlp

import hvd_keras as hvd
from hvd_keras.diagnostics.timeline import path_of_rank

BATCHES, EPOCHS = 3, 2
# Of the gradients of mlp(): 3 x 4 + 4 + 4 + 1 numbers.
GRADIENT_BYTES = 21 * 4


def fit(callbacks, **options):
    model = mlp()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", **options)
    x, y = hvd.shard(joined_data(BATCHES, 4))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    return model.fit(
        x, y, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[broadcast, *callbacks]
    )


def test_steps_and_epochs_are_marked(shared_tmp_path):
    hvd.start_timeline(shared_tmp_path / "fit.json")
    fit([])
    hvd.stop_timeline()
    events = json.loads(path_of_rank(str(shared_tmp_path / "fit.json"), hvd.rank()).read_text())
    steps = [event for event in events if event["name"] == "STEP"]
    epochs = [event for event in events if event["name"] == "EPOCH"]
    assert [event["args"]["number"] for event in steps] == list(range(BATCHES)) * EPOCHS
    assert [event["args"]["number"] for event in epochs] == list(range(EPOCHS))
    gradients = [e for e in events if e["name"].endswith("gradients.0")]
    assert len(gradients) == BATCHES * EPOCHS
    for step, gradient in zip(steps, gradients, strict=True):
        assert gradient["args"]["bytes"] == GRADIENT_BYTES
        assert step["ts"] < gradient["ts"]
        assert gradient["ts"] + gradient["dur"] < step["ts"] + step["dur"]
        epoch = epochs[steps.index(step) // BATCHES]
        assert epoch["ts"] < step["ts"] < epoch["ts"] + epoch["dur"]


def test_nothing_is_marked_without_a_timeline(shared_tmp_path):
    hvd.start_timeline(shared_tmp_path / "off.json")
    hvd.stop_timeline()
    fit([])
    events = json.loads(path_of_rank(str(shared_tmp_path / "off.json"), hvd.rank()).read_text())
    assert [event["name"] for event in events if event["ph"] == "X"] == []


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))


def test_logs_have_what_the_exchange_costs(tmp_path):
    path = tmp_path / "log.csv"
    batches = Batches()
    history = fit(
        [
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.StatsCallback(),
            batches,
            keras.callbacks.CSVLogger(str(path)),
        ]
    ).history
    names = {"hvd_bytes", "hvd_exposed_ms", "hvd_late_ms"}
    assert len(batches.logs) == BATCHES * EPOCHS
    for logs in batches.logs:
        assert names < set(logs)
        assert logs["hvd_exposed_ms"] > 0 and logs["hvd_late_ms"] >= 0
    # In the first step variables are broadcast, too.
    assert [logs["hvd_bytes"] for logs in batches.logs[1:]] == [GRADIENT_BYTES] * (
        BATCHES * EPOCHS - 1
    )
    assert history["hvd_bytes"][1] == GRADIENT_BYTES
    assert set(history["hvd_late_rank"]) <= set(range(hvd.size()))
    assert everywhere(history["hvd_late_ms"]) == [history["hvd_late_ms"]] * hvd.size()
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["hvd_bytes"]) for row in rows] == history["hvd_bytes"]


def test_counters_know_who_was_last():
    before = hvd.stats()
    for i in range(hvd.size()):
        hvd.barrier(f"test.between.{i}")
        if hvd.rank() == i:
            time.sleep(0.3)
        hvd.allreduce([1.0], name=f"test.last.{i}")
    after = hvd.stats()
    assert after["last"] - before["last"] >= 1
    assert after["late_ns"] - before["late_ns"] > 100_000_000
    assert after["waited_ns"] - before["waited_ns"] > (hvd.size() - 1) * 100_000_000
    assert after["exposed_ns"] - before["exposed_ns"] > (hvd.size() - 1) * 100_000_000
