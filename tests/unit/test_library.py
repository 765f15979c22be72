"""The checks before the op library is loaded, and what may not load it."""

import json
import subprocess
import sys
import sysconfig

import pytest

from hvd_keras import _library
from hvd_keras.errors import LibraryError

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def write(folder, **info):
    (folder / "_build_info.json").write_text(json.dumps(info))


def test_same_minor_version_is_accepted(tmp_path):
    write(tmp_path, tensorflow="2.21.0", python=PYTHON)
    _library.check_build("2.21.3", tmp_path)


@pytest.mark.parametrize("installed", ["2.20.0", "2.22.0-rc1", "3.21.0"])
def test_other_tensorflow(tmp_path, installed):
    write(tmp_path, tensorflow="2.21.0", python=PYTHON)
    with pytest.raises(LibraryError) as caught:
        _library.check_build(installed, tmp_path)
    message = str(caught.value)
    assert f"built for TensorFlow 2.21.0, but TensorFlow {installed} is installed" in message
    assert "pip install --force-reinstall --no-deps ." in message


def test_other_python(tmp_path):
    write(tmp_path, tensorflow="2.21.0", python="3.1")
    with pytest.raises(LibraryError, match=f"built for Python 3.1, but this is Python {PYTHON}"):
        _library.check_build("2.21.0", tmp_path)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_unknown_build(tmp_path, content):
    if content is not None:
        (tmp_path / "_build_info.json").write_text(content)
    with pytest.raises(LibraryError, match="not known for which TensorFlow.*pip install"):
        _library.check_build("2.21.0", tmp_path)


def test_missing_library(tmp_path):
    with pytest.raises(LibraryError, match="does not exist .found none.; .*pip install"):
        _library.library_path(tmp_path)
    (tmp_path / "_core.cpython-31-other.so").touch()
    with pytest.raises(LibraryError, match="found only _core.cpython-31-other.so"):
        _library.library_path(tmp_path)
    (tmp_path / f"_core{SUFFIX}").touch()
    assert _library.library_path(tmp_path) == tmp_path / f"_core{SUFFIX}"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_importing_the_package_does_not_import_tensorflow():
    done = run(
        "import sys, hvd_keras, hvd_keras.settings\n"
        "assert 'init' in dir(hvd_keras)\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules), sys.modules"
    )
    assert done.returncode == 0, done.stderr


CALLS = {
    "rank": "hvd.rank()",
    "allreduce": "hvd.allreduce([1.0])",
    "in a function": "tf.function(lambda: hvd.allreduce([1.0]))()",
    "optimizer": "hvd.DistributedOptimizer('sgd')",
    "tape": "hvd.DistributedGradientTape(tf.GradientTape())",
    "object": "hvd.broadcast_object(1)",
    "variables": "hvd.broadcast_variables([], 0)",
    "barrier": "hvd.barrier()",
}


def test_calls_before_init_get_one_clear_sentence():
    calls = "\n".join(
        f"try:\n  {call}\n  print('no error')\n"
        f"except (RuntimeError, ValueError) as error:\n  print(str(error).strip())"
        for call in CALLS.values()
    )
    done = run(f"import tensorflow as tf\nimport hvd_keras as hvd\n{calls}")
    lines = [line for line in done.stdout.splitlines() if "hvd.init() has not been called" in line]
    assert len(lines) == len(CALLS), done.stdout + done.stderr
    assert "no error" not in done.stdout
    assert lines[0] == (
        "hvd.init() has not been called: hvd.rank() needs it, so call it once at the start of the "
        "script."
    )
