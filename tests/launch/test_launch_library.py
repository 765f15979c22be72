"""The launcher together with TensorFlow and the compiled library."""

from __future__ import annotations

import sys

import pytest

SCRIPT = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import sys
import tensorflow as tf
import hvd_keras as hvd

hvd.init()
hvd.allreduce(tf.ones([]))
if hvd.rank() == 1:
    {end}
{call}
"""
PLAIN = 'hvd.allreduce(tf.ones([4]), name="weights")'
COMPILED = f"tf.function(lambda: {PLAIN}, jit_compile=True)()"


@pytest.mark.parametrize(
    ("end", "code", "call"),
    [("sys.exit(3)", 3, PLAIN), ("os._exit(4)", 4, PLAIN), ("os._exit(4)", 4, COMPILED)],
    ids=["exit", "at_once", "at_once_compiled"],
)
def test_the_rank_that_left_is_blamed_not_the_one_that_noticed(hvdrun, end, code, call):
    result = hvdrun.run_python(2, SCRIPT.replace("{end}", end).replace("{call}", call))
    assert result.returncode == code, result.stderr
    assert "hvdrun: rank 1 of 2" in result.stderr.splitlines()[-1]
    assert "Then rank 0 (exit code 1) failed, too" in result.stderr.splitlines()[-1]
    assert "weights" in result.stderr


CLUSTERS = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_XLA_FLAGS"] = (
    "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
)
import tensorflow as tf
import hvd_keras as hvd

hvd.init()

@tf.function
def function(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allgather(tf.tanh(x) * 0 + x) * 2  # parts that differ in size
    return y, tape.gradient(y, x), hvd.allreduce(tf.reduce_sum(y), op=hvd.Sum)

y, gradient, total = function(tf.ones([hvd.rank() + 1]))
assert y.numpy().tolist() == [2, 2, 2] and float(total) == 12, (y, total)
assert gradient.numpy().tolist() == [4] * (hvd.rank() + 1), gradient
"""


def test_parts_that_xla_compiles_of_its_own_accord_have_no_collectives(hvdrun):
    result = hvdrun.run_python(2, CLUSTERS)
    assert result.returncode == 0, result.stderr


def test_check_build(hvdrun):
    import tensorflow as tf

    result = hvdrun("--check-build")
    assert result.returncode == 0, result.stdout
    words = {line.split()[0]: line.split(None, 1)[1] for line in result.stdout.splitlines()}
    assert words["python"].endswith(f"({sys.executable})")
    assert words["tensorflow"].startswith(f"found {tf.__version__} ")
    assert words["operations"].startswith("loaded from ")
    assert words["transports"].startswith("shm")
    assert f"tensorflow {tf.__version__}" in result.stdout.split("built for")[1]


def test_check_build_without_tensorflow(hvdrun):
    hvdrun.script("raise ImportError('it is broken')", "tensorflow.py")
    hvdrun.env["PYTHONPATH"] = f"{hvdrun.folder}:{hvdrun.env['PYTHONPATH']}"
    result = hvdrun("--check-build")
    assert result.returncode == 1
    assert "does not import: ImportError: it is broken" in result.stdout
    assert result.stderr == ""
