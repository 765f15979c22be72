"""python -m hvd_keras.compat, hvdrun --compat and the alias's answers, in single processes."""

import os
import subprocess
import sys

import pytest

from hvd_keras.launch import environment
from hvd_keras.launch.compat import require_alias_is_seen
from hvd_keras.launch.errors import LaunchError

LIGHT = "import horovod, sys; print(horovod.__version__, horovod.__file__, sys.argv, __name__)"


def run(*arguments, code=0, env=(), **options):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **dict(env)},
        **options,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_without_asking_there_is_no_alias():
    done = run("-c", "import hvd_keras.compat, horovod", code=1)
    assert "No module named 'horovod'" in done.stderr


@pytest.mark.parametrize("how", ["script", "module", "code", "stdin", "folder"])
def test_ways_to_run(how, script, tmp_path):
    path = script(LIGHT, "__main__.py" if how == "folder" else "script.py")
    command = {
        "script": [path],
        "module": ["-m", "script"],
        "code": ["-c", LIGHT],
        "stdin": ["-"],
        "folder": [tmp_path],
    }[how]
    done = run("-m", "hvd_keras.compat", *command, "--x", "1", cwd=tmp_path, input=LIGHT)
    assert done.stdout.startswith("0.28.1 ")
    assert "'--x', '1'] __main__" in done.stdout and "compat/alias/horovod" in done.stdout


def test_the_script_is_main(script, tmp_path):
    script("value = 7", "beside.py")
    path = script(
        "import pickle, sys, beside\n"
        "class A: pass\n"
        "def later(): return main_global\n"
        "main_global = 5\n"
        "assert sys.modules['__main__'].A is A and later() == 5\n"
        "assert isinstance(pickle.loads(pickle.dumps(A())), A)\n"
        "assert 'runpy' not in globals() and __spec__ is None and __file__ == sys.argv[0]\n"
        "import atexit; atexit.register(lambda: print('at exit', main_global, beside.value))\n"
        "sys.exit(3)\n"
    )
    done = run("-m", "hvd_keras.compat", path, code=3, cwd="/")
    assert done.stdout == "at exit 5 7\n"


def test_processes_that_the_script_starts_use_the_alias_too(script):
    path = script(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import horovod; print(horovod.__version__)'])\n"
    )
    assert run("-m", "hvd_keras.compat", path).stdout == "0.28.1\n"


def test_an_installed_horovod_is_not_used(script, tmp_path):
    (tmp_path / "site" / "horovod").mkdir(parents=True)
    (tmp_path / "site" / "horovod" / "__init__.py").write_text("raise ImportError('the real one')")
    (tmp_path / "site" / "horovod-0.27.0.dist-info").mkdir()
    (tmp_path / "site" / "horovod-0.27.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: horovod\nVersion: 0.27.0\n"
    )
    path = script(LIGHT)
    env = {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = run("-m", "hvd_keras.compat", path, env=env)
    assert done.stdout.startswith("0.28.1 ")
    assert "not the Horovod 0.27.0 that is installed" in done.stderr
    done = run("-c", "import hvd_keras.launch; import horovod", env=env, code=1)
    assert "the real one" in done.stderr


def test_installing_too_late_is_an_error(script, tmp_path):
    (tmp_path / "horovod.py").write_text("")
    done = run("-c", "import horovod, hvd_keras.compat as c; c.install()", code=1, cwd=tmp_path)
    assert "before hvd_keras.compat.install()" in done.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "usage:"),
        (["-m"], "-m needs an argument"),
        (["-u", "train.py"], "python -u -m hvd_keras.compat"),
        (["missing.py"], "there is no file 'missing.py'"),
    ],
)
def test_bad_commands(arguments, message, tmp_path):
    assert message in run("-m", "hvd_keras.compat", *arguments, code=2, cwd=tmp_path).stderr


@pytest.mark.parametrize("module", ["torch", "mxnet", "tensorflow.data"])
def test_what_is_not_carried_over_says_so(module):
    code = f"import horovod.{module}"
    done = run("-m", "hvd_keras.compat", "-c", code, code=1)
    assert f"ModuleNotFoundError: horovod.{module}: " in done.stderr


def test_answers_of_one_process(script):
    path = script(
        """
import json
import pathlib
import pickle
import tempfile
import horovod.tensorflow as hvd
import horovod.keras
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvd_keras.compat import errors

for function in (hvd.rank, hvd.size, hvd.local_rank, hvd.is_homogeneous,
                 hvd.mpi_threads_supported, lambda: hvd.allreduce(tf.zeros(1)),
                 lambda: hvd.broadcast_object(1), lambda: hvd.DistributedOptimizer(None)):
    with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
        function()
assert not hvd.is_initialized()
hvd.init()
assert hvd.is_initialized() and (hvd.rank(), hvd.size()) == (0, 1) and hvd.is_homogeneous()
assert hvd.mpi_built()
built = [hvd.gloo_built(), hvd.nccl_built(), hvd.ddl_built(), hvd.ccl_built(),
         hvd.cuda_built(), hvd.rocm_built(), hvd.mpi_enabled(), hvd.gloo_enabled()]
assert not any(built) and not hvd.mpi_threads_supported() and not hvd.gpu_available("tensorflow")
assert hvd.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
v = tf.Variable(1.0)
assert hvd.refs_to_vars(hvd.vars_to_refs([v]))[0] is v
hvd.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
with pytest.raises(ImportError, match="TensorFlow and Keras only"):
    hvd.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
with tempfile.TemporaryDirectory() as folder:
    hvd.start_timeline(folder + "/x.json", mark_cycles=True)
    hvd.stop_timeline()
    assert json.loads(pathlib.Path(folder, "x.json").read_text())[0]["name"] == "hvd_keras_timeline"
with pytest.raises(AttributeError, match="docs/migrating.md"):
    hvd.no_such_name
with pytest.raises(AttributeError, match="PyTorch use torch.distributed"):
    __import__("horovod").torch
with pytest.raises(RuntimeError, match="broadcast_variables"):
    hvd.broadcast_global_variables(0)
with pytest.raises(ValueError, match="op=.*average="):
    hvd.allreduce(tf.zeros(1), average=True, op=hvd.Sum)
assert hvd.handle_average_backwards_compatibility(None, None) is hvd.Average
with pytest.warns(DeprecationWarning):
    assert hvd.handle_average_backwards_compatibility(None, False) is hvd.Sum
assert HostsUpdatedInterrupt(True).skip_sync is True
died = errors.as_horovod_error(tf.errors.AbortedError(None, None, "rank 1 died"))
assert isinstance(died, HorovodInternalError) and isinstance(died, tf.errors.AbortedError)
assert str(died) == "rank 1 died", str(died)
assert pickle.loads(pickle.dumps(HorovodInternalError("x"))).args == ("x",)
assert HorovodInternalError.__module__ == "horovod.common.exceptions"
mismatch = errors.as_horovod_error(tf.errors.InvalidArgumentError(None, None, "shapes"))
assert isinstance(mismatch, tf.errors.FailedPreconditionError)
assert isinstance(mismatch, tf.errors.InvalidArgumentError)
print("done")
"""
    )
    assert run("-m", "hvd_keras.compat", path).stdout == "done\n"


def test_the_alias_comes_first_on_the_path():
    env = environment.with_alias({"PYTHONPATH": os.pathsep.join(["/a", "/b"])})
    assert env["PYTHONPATH"].split(os.pathsep) == [environment.ALIAS_FOLDER, "/a", "/b"]
    assert environment.with_alias(env) == env
    assert environment.with_alias({})["PYTHONPATH"] == environment.ALIAS_FOLDER


def test_ranks_know_who_they_are_under_horovod_s_names():
    env = environment.rank_environment(environment.with_alias({}), 1, 2, "seg", 2)
    assert env["HOROVOD_RANK"] == env["HVD_RANK"] == "1" and env["HOROVOD_LOCAL_SIZE"] == "2"
    assert "HOROVOD_SEGMENT" not in env
    assert "HOROVOD_RANK" not in environment.rank_environment({}, 1, 2, "seg", 2)


@pytest.mark.parametrize(
    "command",
    ["python train.py -I", "python3.11 -u -W error train.py", "python -c -E", "./run.sh -I"],
)
def test_commands_in_which_the_alias_is_seen(command, tmp_path):
    require_alias_is_seen(command.split(), str(tmp_path))


@pytest.mark.parametrize(
    "command, message",
    [
        ("python -I train.py", "python -I -m hvd_keras.compat train.py"),
        ("/usr/bin/python3 -uE -m train", "python -E -m hvd_keras.compat -m train"),
        ("python -X dev -I -c pass", "python -I -m hvd_keras.compat -c pass"),
        ("python sub/train.py", "sub/horovod, which comes before everything else"),
    ],
)
def test_commands_in_which_it_is_not(command, message, tmp_path):
    (tmp_path / "sub" / "horovod").mkdir(parents=True)
    with pytest.raises(LaunchError, match=message.replace(".", r"\.")):
        require_alias_is_seen(command.split(), str(tmp_path))


def test_horovodrun_on_request(tmp_path):
    done = run("-m", "hvd_keras.compat", "--install-horovodrun", tmp_path)
    assert done.stdout == f"installed {tmp_path / 'horovodrun'}\n"
    run("-m", "hvd_keras.compat", "--install-horovodrun", tmp_path)  # its own may be replaced
    job = subprocess.run(
        [tmp_path / "horovodrun", "-np", "2", sys.executable, "-c", LIGHT],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert job.returncode == 0 and job.stdout.count("0.28.1 ") == 2, job.stdout + job.stderr
    (tmp_path / "horovodrun").write_text("from horovod.runner.launch import run_commandline")
    done = run("-m", "hvd_keras.compat", "--install-horovodrun", tmp_path, code=2)
    assert "belongs to another package" in done.stderr


def test_run_a_function(script, tmp_path):
    path = script(
        """
import horovod
import pytest

def work(a, b=0):
    import horovod.tensorflow as hvd
    hvd.init()
    return hvd.allreduce([a + b + hvd.rank()], average=False).numpy().tolist(), hvd.size()

def fail():
    raise KeyError("mine")

if __name__ == "__main__":
    assert horovod.run(work, (1.0,), {"b": 2.0}, np=2) == [([7.0], 2)] * 2
    with pytest.raises(RuntimeError, match="exit code 1"):
        horovod.run(fail, num_proc=1)
    with pytest.raises(ValueError, match="min_num_proc=1: the number of ranks is fixed"):
        horovod.run(work, num_proc=2, min_num_proc=1)
    with pytest.raises(Exception, match="elsewhere|pip install mpi4py"):
        horovod.run(work, num_proc=2, hosts="elsewhere:2")
    print("done")
"""
    )
    done = run("-m", "hvd_keras.compat", path)
    assert done.stdout.endswith("done\n") and "KeyError: 'mine'" in done.stderr
