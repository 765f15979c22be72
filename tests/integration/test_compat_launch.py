"""hvdrun --compat: every Python that the ranks run finds the alias."""

import os
import subprocess
import sys

import pytest

LIGHT = "import horovod, os; print('is', horovod.__version__, os.environ['HOROVOD_RANK'])"


def hvdrun(*command, cwd, code=0, env=()):
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.launch", "--compat", "-np", "2", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, **dict(env)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("how", ["script", "options", "module", "code", "shell", "compat"])
def test_commands(how, tmp_path):
    (tmp_path / "train.py").write_text(LIGHT)
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\ncd / && exec {sys.executable} $OLDPWD/train.py\n")
    (tmp_path / "run.sh").chmod(0o755)
    command = {
        "script": [sys.executable, "train.py"],
        "options": [sys.executable, "-u", "-W", "error", "-X", "dev", "train.py"],
        "module": [sys.executable, "-m", "train"],
        "code": [sys.executable, "-c", LIGHT],
        "shell": ["./run.sh"],
        "compat": [sys.executable, "-m", "hvd_keras.compat", "train.py"],
    }[how]
    output = hvdrun(*command, cwd=tmp_path)
    assert "is 0.28.1 0" in output and "is 0.28.1 1" in output


def test_a_path_of_the_user_s_is_kept(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "helper.py").write_text("value = 5")
    paths = os.pathsep.join([str(tmp_path / "mine"), os.environ.get("PYTHONPATH", "")])
    code = f"import helper; {LIGHT}; print(helper.value)"
    output = hvdrun(sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert output.count("5\n") == 2


def test_a_folder_that_would_come_first_is_told(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "train.py").write_text(LIGHT)
    output = hvdrun(sys.executable, "train.py", cwd=tmp_path, code=2)
    assert "comes before everything else" in output and "-m hvd_keras.compat train.py" in output
    output = hvdrun(sys.executable, "-m", "hvd_keras.compat", "train.py", cwd=tmp_path)
    assert "is 0.28.1 1" in output


def test_an_option_that_hides_the_alias_is_told(tmp_path):
    output = hvdrun(sys.executable, "-I", "train.py", cwd=tmp_path, code=2)
    assert "python -I -m hvd_keras.compat train.py" in output
