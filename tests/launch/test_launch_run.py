"""A job that goes well: environment, arguments, start-up."""

from __future__ import annotations

import json
import os
import stat
import sys

from hvd_keras.launch import launch

PRINT_ENVIRONMENT = """
import json, os
print(json.dumps(dict(os.environ)))
"""


def environments(result):
    """The environment that each rank has printed."""
    assert result.returncode == 0, result.stderr
    lines = (line.partition(" ") for line in result.stdout.splitlines())
    return {label: json.loads(text) for label, _, text in lines}


def test_each_rank_is_told_who_it_is(hvdrun):
    found = environments(hvdrun.run_python(3, PRINT_ENVIRONMENT))
    assert sorted(found) == ["[0]<stdout>:", "[1]<stdout>:", "[2]<stdout>:"]
    for rank in range(3):
        env = found[f"[{rank}]<stdout>:"]
        assert env["HVD_RANK"] == env["HVD_LOCAL_RANK"] == str(rank)
        assert env["HVD_SIZE"] == env["HVD_LOCAL_SIZE"] == "3"
        assert env["HVD_CROSS_RANK"] == "0"
        assert env["HVD_CROSS_SIZE"] == "1"
    assert len({env["HVD_SEGMENT"] for env in found.values()}) == 1


def test_all_ranks_open_one_empty_private_segment(hvdrun):
    result = hvdrun.run_python(
        2,
        """
import os, sys
info = os.stat(os.environ["HVD_SEGMENT"])
fd = os.open(os.environ["HVD_SEGMENT"], os.O_RDWR)
print(info.st_ino, info.st_size, os.readlink(os.environ["HVD_SEGMENT"]))
""",
    )
    lines = {line.partition(" ")[2] for line in result.stdout.splitlines()}
    assert len(lines) == 1, result.stdout
    inode, size, name = lines.pop().split(" ", 2)
    assert size == "0"
    assert "memfd:hvd" in name


def test_a_segment_survives_wrappers_that_close_descriptors(hvdrun):
    text = "exec 3>&- 4>&- 5>&- 6>&-; test -e $HVD_SEGMENT && echo there"
    result = hvdrun("-np", 1, "sh", "-c", text)
    assert result.stdout == "[0]<stdout>: there\n"


def test_identity_of_an_outer_job_does_not_leak(hvdrun):
    hvdrun.env.update(HOROVOD_RANK="7", HOROVOD_SIZE="9", HVD_RANK="7", HVD_SEGMENT="x")
    env = environments(hvdrun.run_python(1, PRINT_ENVIRONMENT))["[0]<stdout>:"]
    assert env["HVD_RANK"] == "0"
    assert env["HVD_SEGMENT"] != "x"
    assert "HOROVOD_RANK" not in env


def test_cores_are_shared_unless_the_user_says_otherwise(hvdrun):
    hvdrun.env["OMP_NUM_THREADS"] = "5"
    env = environments(hvdrun.run_python(2, PRINT_ENVIRONMENT))["[1]<stdout>:"]
    assert env["TF_NUM_INTRAOP_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert env["OMP_NUM_THREADS"] == "5"
    env = environments(hvdrun.run_python(1, PRINT_ENVIRONMENT))["[0]<stdout>:"]
    assert "TF_NUM_INTRAOP_THREADS" not in env


def test_verbose_shows_what_is_set(hvdrun):
    result = hvdrun("-np", 2, "--verbose", "true")
    assert result.returncode == 0
    assert "TF_NUM_INTRAOP_THREADS=" in result.stderr
    assert "rank 1: pid " in result.stderr


def test_options_set_the_settings_of_the_library(hvdrun):
    options = "--fusion-threshold-mb 0.5 --start-timeout 7 --deadlock-seconds 9.5"
    env = environments(hvdrun.run_python(1, PRINT_ENVIRONMENT, *options.split()))["[0]<stdout>:"]
    assert env["HVD_FUSION_THRESHOLD"] == str(1 << 19)
    assert env["HVD_START_TIMEOUT"] == "7"
    assert env["HVD_DEADLOCK_SECONDS"] == "9.5"
    env = environments(hvdrun.run_python(1, PRINT_ENVIRONMENT))["[0]<stdout>:"]
    assert not {"HVD_FUSION_THRESHOLD", "HVD_START_TIMEOUT", "HVD_DEADLOCK_SECONDS"} & set(env)


def test_the_options_mean_what_settings_reads(hvdrun):
    text = """
from hvd_keras.settings import Settings
s = Settings.from_environment()
print(s.fusion_threshold, s.start_timeout, s.deadlock_seconds, s.rank, s.size)
"""
    options = "--fusion-threshold-mb 2 --start-timeout 7 --deadlock-seconds 9"
    result = hvdrun.run_python(2, text, *options.split())
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"[{rank}]<stdout>: {2 << 20} 7.0 9.0 {rank} 2" for rank in range(2)
    ]


def test_what_follows_the_command_is_the_commands(hvdrun):
    name = hvdrun.script("import sys\nprint(sys.argv[1:])\n")
    rest = ["-np", "7", "--help", "--", "-H", "a b", "--version"]
    result = hvdrun("-np", 2, sys.executable, name, *rest)
    assert sorted(result.stdout.splitlines()) == [f"[{r}]<stdout>: {rest}" for r in range(2)]
    result = hvdrun("--num-proc=1", "--", sys.executable, name, *rest)
    assert result.stdout == f"[0]<stdout>: {rest}\n"


def test_scripts_modules_and_relative_paths(hvdrun):
    hvdrun.script("print('module', __name__)\n", "some_module.py")
    result = hvdrun("-np", 1, sys.executable, "-m", "some_module")
    assert result.stdout == "[0]<stdout>: module __main__\n"
    path = hvdrun.folder / hvdrun.script(f"#!{sys.executable}\nimport sys\nprint(sys.argv)\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    result = hvdrun("-np", 1, "./script.py", "x")
    assert result.stdout == "[0]<stdout>: ['./script.py', 'x']\n"
    result = hvdrun("-np", 1, "-H", "localhost:1", "../" + hvdrun.folder.name + "/script.py")
    assert result.returncode == 0, result.stderr


def test_local_hosts(hvdrun):
    own = os.uname().nodename
    for hosts in ("localhost:2", f"{own}:2", "127.0.0.1:2", "localhost:1,127.0.0.1:1", "[::1]:3"):
        assert hvdrun("-np", 2, "-H", hosts, "true").returncode == 0, hosts


def test_standard_input_is_empty(hvdrun):
    process = hvdrun.python(2, "import sys\nprint(repr(sys.stdin.read()))\n")
    assert sorted(hvdrun.finish(process).stdout.splitlines()) == [
        "[0]<stdout>: ''",
        "[1]<stdout>: ''",
    ]


def test_nothing_heavy_is_imported_and_the_users_modules_are_left_alone(hvdrun):
    for name in ("tensorflow", "numpy", "keras", "selectors", "json", "argparse", "signal"):
        hvdrun.script("raise SystemExit('imported ' + __name__)\n", f"{name}.py")
    command = [sys.executable, "-I", "-c", "print('fine')"]
    code = (
        "import sys\n"
        f"sys.path[:] = [{str(hvdrun.env['PYTHONPATH'])!r}] + sys.path[1:]\n"
        "from hvd_keras.launch.cli import main\n"
        f"code = main(['-np', '1'] + {command!r})\n"
        "heavy = {'tensorflow', 'numpy', 'keras'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    result = launch([sys.executable, "-c", code], 1, env=hvdrun.env, cwd=hvdrun.folder)
    assert result.exit_code == 0


def test_version_and_help(hvdrun):
    result = hvdrun("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("hvdrun (hvd_keras) ")
    result = hvdrun("--help")
    assert result.returncode == 0
    for group in ("general:", "hosts:", "environment and tuning:", "output:", "failures and"):
        assert f"\n{group}" in result.stdout
    assert hvdrun("-np", 2, "-h").stdout == result.stdout


def test_many_ranks(hvdrun):
    result = hvdrun("-np", 40, "sh", "-c", "echo $HVD_RANK")
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == sorted(f"[{r}]<stdout>: {r}" for r in range(40))
