"""hvd_keras.runner: functions on several ranks of this machine."""

import functools
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from hvd_keras import runner
from hvd_keras.runner import local, payload, placement
from tests.rank_functions import check_failure_of_work, make_failing

pytest.importorskip("cloudpickle")

run = functools.partial(runner.run, **local.quiet())


def test_results_come_in_the_order_of_the_ranks():
    offset = 10  # of this function, not of a module that the ranks could import

    def work(factor, *, more=0):
        import hvd_keras as hvd

        hvd.init()
        total = hvd.allreduce(np.full(2, factor * (hvd.rank() + 1.0)), op=hvd.Sum)
        return hvd.rank(), hvd.size(), total.numpy().tolist(), offset + more

    assert run(work, (2.0,), {"more": 5}, np=2) == [
        (0, 2, [6.0, 6.0], 15),
        (1, 2, [6.0, 6.0], 15),
    ]


def test_the_first_traceback_comes_back():
    with pytest.raises(runner.RankFailedError) as caught:
        run(make_failing(), np=2)
    check_failure_of_work(caught.value)
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith("rank 1 of 2 (pid ")


def test_a_rank_that_is_killed():
    def work():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(runner.RankFailedError, match="with signal 9; its output says why"):
        run(work)


class TestWhatCannotBeSent:
    def test_a_tensor_in_the_function(self):
        import tensorflow as tf

        weights = tf.ones([2])
        layers = {"first": [weights]}

        def direct():
            return weights + 1

        def through_another():
            return direct()

        for function in direct, through_another, lambda: layers:
            with pytest.raises(ValueError, match="a TensorFlow tensor. Make it inside"):
                payload.pack_call(function)

    def test_arguments(self):
        import tensorflow as tf

        with pytest.raises(ValueError, match="argument 'x', a TensorFlow variable"):
            payload.pack_call(print, (), {"x": tf.Variable(1.0)})
        with pytest.raises(ValueError, match="argument 0, a TensorFlow session"):
            payload.pack_call(print, (tf.compat.v1.Session(graph=tf.Graph()),))
        with pytest.raises(ValueError, match="cannot be pickled .*TypeError"):
            payload.pack_call(print, (threading.Lock(),))

    def test_results(self):
        def work():
            import tensorflow as tf

            return {"loss": tf.ones([])}

        with pytest.raises(runner.RankFailedError, match="function returns a TensorFlow tensor"):
            run(work)

    def test_an_import_that_the_ranks_do_not_have(self, tmp_path, monkeypatch):
        (tmp_path / "only_here.py").write_text("def work():\n    return 1\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        import only_here

        content = payload.pack_call(only_here.work)
        monkeypatch.undo()
        del sys.modules["only_here"]
        with pytest.raises(ImportError, match="needs only_here .* import it inside the function"):
            payload.unpack_call(content)


def test_a_function_that_exits():
    with pytest.raises(runner.RankFailedError, match=r"has called sys.exit\(0\); expected it to"):
        run(sys.exit, (0,))


def test_hosts_are_told_apart(monkeypatch):
    here = placement.this_host()
    assert here == placement.this_host() and here.identity.count("/") == 2
    monkeypatch.setenv("HVD_HOST_ID", "elsewhere")
    assert placement.this_host().identity == "elsewhere"


def test_messages_to_the_driver():
    def work():
        from hvd_keras.runner import log_to_driver

        log_to_driver("x" * 5000)
        log_to_driver("second")

    heard = []
    run(work, log=heard.append)
    assert heard == ["x" * 4000, "second"]


def test_horovod_runner_trains(capfd):
    def train(epochs):
        import keras

        import hvd_keras as hvd
        from hvd_keras.runner.log_callback import LogCallback

        hvd.init()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        x = np.full((4, 2), hvd.rank() + 1.0)
        print("printed")
        history = model.fit(x, x[:, :1], epochs=epochs, callbacks=[LogCallback()], verbose=0)
        return hvd.rank(), history.history["loss"]

    rank, losses = runner.HorovodRunner(np=-2).run(train, epochs=2)
    assert rank == 0 and len(losses) == 2 and losses[1] < losses[0]
    out = capfd.readouterr().out
    assert "Epoch 1 ends: loss: " in out and out.count("Epoch 0 begins.") == 1
    assert "printed" not in out
    runner.HorovodRunner(np=-1, driver_log_verbosity="all").run(train, epochs=1)
    assert "printed" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"np": 1.5}, "np is 1.5; expected a whole number"),
        ({"np": -1, "driver_log_verbosity": "some"}, "expected one of 'all', 'log_callback_only'"),
    ],
)
def test_arguments_of_horovod_runner(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        runner.HorovodRunner(**arguments)


def test_databricks_scripts_run_as_they_are(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
from sparkdl import HorovodRunner
from sparkdl.horovod import log_to_driver
from sparkdl.horovod.tensorflow.keras import LogCallback

def main(word):
    import horovod.tensorflow.keras as hvd
    hvd.init()
    log_to_driver(f"{word} from rank {hvd.rank()} of {hvd.size()}")
    return hvd.size()

assert LogCallback(per_batch_log=True).per_batch_log
print("sizes", HorovodRunner(np=-2).run(main, word="hello"))
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.compat", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "hello from rank 0 of 2" in done.stdout and "hello from rank 1 of 2" in done.stdout
    assert "sizes 2" in done.stdout
