"""Bad input: one clear sentence, exit code 2, no traceback."""

from __future__ import annotations

import sys

import pytest

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.hosts import HostSlots, check_slots, is_local_host, parse_hosts

TRUE = ["true"]
CASES = {
    "no -np": (TRUE, "-np N"),
    "-np 0": (["-np", "0", *TRUE], "1 or more, not '0'"),
    "-np negative": (["-np", "-3", *TRUE], "1 or more, not '-3'"),
    "-np word": (["-np", "two", *TRUE], "not 'two'"),
    "-np fraction": (["-np", "1.5", *TRUE], "not '1.5'"),
    "-np without value": (["-np"], "-np"),
    "no command": (["-np", "2"], "hvdrun -np 2 python train.py"),
    "empty command": (["-np", "2", ""], "no command"),
    "no such command": (["-np", "2", "no-such-command-here"], "'no-such-command-here' on PATH"),
    "no such file": (["-np", "2", "./no/such"], "'./no/such' does not exist"),
    "a directory": (["-np", "2", "/"], "is a directory"),
    "not executable": (["-np", "2", "./plain.py"], "hvdrun ... python ./plain.py"),
    "script without python": (["-np", "2", "plain.py"], "write python plain.py"),
    "not a program": (["-np", "2", "./text"], "put the interpreter before it"),
    "no such interpreter": (["-np", "2", "./shebang"], "does not exist"),
    "bad port": (["-np", "2", "-p", "70000", *TRUE], "not '70000'"),
    "--mpi-args quotes": (["-np", "2", "--mpi", "--mpi-args", "'-x", *TRUE], "No closing"),
    "no jsrun": (["-np", "2", "--jsrun", *TRUE], "inside an allocation of LSF"),
    "no config file": (["--config-file", "no/such", "-np", "2", *TRUE], "--config-file"),
    "few slots": (["-np", "4", "-H", "localhost:2", *TRUE], "only 2 slots"),
    "host without slots": (["-np", "2", "-H", "localhost", *TRUE], "only 1 slot:"),
    "no slots": (["-np", "2", "-H", "localhost:", *TRUE], "'localhost:'"),
    "zero slots": (["-np", "2", "-H", "localhost:0", *TRUE], "'localhost:0'"),
    "negative slots": (["-np", "2", "-H", "localhost:-2", *TRUE], "'localhost:-2'"),
    "slots word": (["-np", "2", "-H", "localhost:many", *TRUE], "host:slots"),
    "empty host": (["-np", "2", "-H", ":2", *TRUE], "':2'"),
    "empty entry": (["-np", "2", "-H", "localhost:2,", *TRUE], "''"),
    "too many colons": (["-np", "2", "-H", "a:1:2", *TRUE], "'a:1:2'"),
    "unknown option": (["--no-such-option", "-np", "2", *TRUE], "--no-such-option"),
    "abbreviated option": (["--num", "2", *TRUE], "--num"),
    "bad seconds": (["-np", "2", "--start-timeout", "soon", *TRUE], "not 'soon'"),
    "negative seconds": (["-np", "2", "--grace-seconds", "-1", *TRUE], "not '-1'"),
    "elastic": (["-np", "2", "--min-np", "1", *TRUE], "the number of ranks is fixed"),
    "discovery": (["-np", "2", "--host-discovery-script=x", *TRUE], "--host-discovery-script"),
    "-H and -hostfile": (["-np", "2", "-H", "a:1", "-hostfile", "b", *TRUE], "leave out one"),
    "no such host file": (["-np", "2", "-hostfile", "no/such", *TRUE], "No such file"),
    "host file of another form": (["-np", "2", "-hostfile", "words", *TRUE], "line 1 is 'a b'"),
    "nan": (["-np", "2", "--timeout-seconds", "nan", *TRUE], "not 'nan'"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_sentence(hvdrun, name):
    arguments, expected = CASES[name]
    for script in ("plain.py", "text", "shebang"):
        hvdrun.script("#!/no/such/interpreter\n" if script == "shebang" else "print(1)\n", script)
    hvdrun.script("a b\n", "words")
    for script in ("text", "shebang"):
        (hvdrun.folder / script).chmod(0o755)
    result = hvdrun(*arguments)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("hvdrun: error: ")
    assert expected in result.stderr


def test_python_that_is_not_on_path(hvdrun):
    process = hvdrun.start("-np", 1, "python", "x.py", env={**hvdrun.env, "PATH": "/nowhere"})
    result = hvdrun.finish(process)
    assert result.returncode == 2
    assert sys.executable in result.stderr


def test_parse_hosts():
    assert parse_hosts("localhost:2") == [HostSlots("localhost", 2)]
    assert parse_hosts(" a:1, b:3 ") == [HostSlots("a", 1), HostSlots("b", 3)]
    assert parse_hosts("a:1,b,a:2") == [HostSlots("a", 3), HostSlots("b", 1)]
    assert parse_hosts("[::1]:2,[fe80::1]") == [HostSlots("::1", 2), HostSlots("fe80::1", 1)]
    for text in ("", ",", "a:b", "[::1", "[::1]2", "a:+1", "a: 1", "a:1e3", "a:²"):
        with pytest.raises(LaunchError, match="host:slots"):
            parse_hosts(text)


def test_local_hosts_are_known_without_a_name_server():
    assert is_local_host("LOCALHOST")
    assert is_local_host("127.0.0.1")
    assert is_local_host("127.0.1.1")
    for host in ("localhost.example.org", "192.0.2.7", "0.0.0.0", "::", "server1"):
        assert not is_local_host(host)


def test_slots_of_several_entries_are_added():
    check_slots([HostSlots("localhost", 1), HostSlots("127.0.0.1", 3)], 4)
    with pytest.raises(LaunchError, match="only 4 slots"):
        check_slots([HostSlots("localhost", 1), HostSlots("127.0.0.1", 3)], 5)


def test_command_lines_of_horovodrun(hvdrun):
    (hvdrun.folder / "hosts").write_text("# one machine\nlocalhost slots=2  # two slots\n")
    words = "-np 2 -hostfile hosts --gloo --cycle-time-ms 1 --autotune --mpi-args=-x -p 22"
    done = hvdrun(*words.split(), "--log-level", "INFO", "sh", "-c", "echo rank $HVD_RANK")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank ") == 2
    assert done.stderr.splitlines() == [
        "hvdrun: --gloo ignored: the ranks exchange data through shared memory and MPI, not "
        "through this library.",
        "hvdrun: --cycle-time-ms, --autotune ignored: collectives start when the last rank has "
        "called them; there is nothing to tune.",
        "hvdrun: --log-level ignored: there is no such log; --verbose says what is started.",
        "hvdrun: --ssh-port, --mpi-args ignored: all ranks are on this machine and need no "
        "network; --mpi would start them through MPI.",
    ]
