"""The parts of hvd_keras.runner.mpi and its channel: no MPI is needed here."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError

import pytest

from hvd_keras.launch import environment, processes
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.mpi_makes import IntelMpi, Mpich, MpiPlan, OpenMpi4, OpenMpi5
from hvd_keras.runner.channel import Server, connect
from hvd_keras.runner.mpi import Meeting, Member, Seat, agent, identity, rank_order
from hvd_keras.runner.placement import Host

SECRET = b"of this job"


def _host(name):
    return Host(name, name)


def _stand_in(meeting):
    """The command of a stand-in."""
    script = identity.__file__.replace("identity.py", "stand_in.py")
    return [sys.executable, "-I", "-S", script, meeting, "30"]


def _until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen within 30 s"
        time.sleep(0.05)


class TestChannel:
    def test_strangers_are_not_served_and_hold_up_nobody(self):
        served = []

        def serve(connection):
            with connection:
                served.append(connection.recv())

        server = Server("127.0.0.1", SECRET, serve)
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address):  # says nothing
            with pytest.raises(OSError, match="cannot connect to 127.0.0.1"):
                connect([address], b"of another job")
            with connect([("127.0.0.1", 1), address], SECRET) as connection:
                connection.send("hello")
            _until(lambda: served)
        server.close()
        assert served == ["hello"]
        with pytest.raises(OSError, match="cannot connect"):
            connect([address], SECRET)

    def test_a_server_that_does_not_know_the_secret(self):
        server = Server("127.0.0.1", b"of another job", lambda connection: connection.close())
        with pytest.raises(OSError) as caught:
            connect([("127.0.0.1", server.port)], SECRET)
        assert isinstance(caught.value.__cause__, AuthenticationError)
        server.close()


class TestAgent:
    def test_output_and_exit_code(self):
        host = agent.Agent(SECRET)
        with connect([("127.0.0.1", host.port)], SECRET) as connection:
            connection.send("echo $((6 * 7)); exit 5")
            answers = [connection.recv()]
            while answers[-1][0] != "exit":
                answers.append(connection.recv())
        output = b"".join(content for kind, content in answers if kind == "output")
        assert output.startswith(b"42\n") and answers[-1] == ("exit", 5)
        host.close()

    @pytest.mark.parametrize("how", ["connection", "close"])
    def test_commands_end_with_all_that_they_have_started(self, how, tmp_path):
        host = agent.Agent(SECRET)
        connection = connect([("127.0.0.1", host.port)], SECRET)
        # The second one has left the shell's session, as a daemon does.
        connection.send(f"setsid sleep 600 & echo $! > {tmp_path}/pids; exec sleep 600")
        _until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        pid = int((tmp_path / "pids").read_text())
        assert processes.is_alive(pid)
        connection.close() if how == "connection" else host.close()
        _until(lambda: not processes.is_alive(pid))
        host.close()

    def test_commands_end_when_the_agent_is_killed(self, tmp_path):
        script = (
            "from hvd_keras.runner.mpi import agent; import sys; "
            f"host = agent.Agent({SECRET!r}); print(host.port, flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            port = int(process.stdout.readline())
            with connect([("127.0.0.1", port)], SECRET) as connection:
                connection.send(f"echo $$ > {tmp_path}/pid; trap '' TERM; sleep 600; sleep 600")
                _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
                pid = int((tmp_path / "pid").read_text())
                process.kill()
                _until(lambda: not processes.is_alive(pid))


def test_a_rank_takes_the_place_of_its_stand_in():
    here, there = socket.socketpair()
    meeting = f"test-{os.getpid()}"
    given = {"PMI_RANK": "3", "PMI_SIZE": "5", "PMI_FD": str(there.fileno()), "MINE": "x"}
    process = subprocess.Popen(
        _stand_in(meeting),
        env={"PATH": os.defpath, **given},
        pass_fds=[there.fileno()],
    )
    there.close()
    try:
        with identity.Rendezvous(meeting, 3) as rendezvous:
            place = rendezvous.wait(30, lambda: None)
        assert place is not None
        # What is no word of MPI's stays behind; the descriptor has a number of this process.
        fd = int(place.variables["PMI_FD"])
        assert place.variables == {"PMI_RANK": "3", "PMI_SIZE": "5", "PMI_FD": str(fd)}
        assert place.fds == [fd]
        os.write(fd, b"to the daemon")
        assert here.recv(100) == b"to the daemon"
        assert process.poll() is None  # it stays as long as the rank
        place.done()
        assert process.wait(30) == 0
        place.release_fds()
    finally:
        process.kill()
        process.wait()
        here.close()


def test_a_stand_in_of_a_rank_that_failed_stays_until_it_is_ended():
    meeting = f"test-failed-{os.getpid()}"
    process = subprocess.Popen(
        _stand_in(meeting),
        env={"PMI_RANK": "0", "PMI_SIZE": "2"},
    )
    try:
        with identity.Rendezvous(meeting, 0) as rendezvous:
            place = rendezvous.wait(30, lambda: None)
        del place  # as in a process that dies, its socket is closed
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_a_stand_in_does_not_outlive_the_daemon_that_has_started_it():
    meeting = f"test-orphan-{os.getpid()}"
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    command = [sys.executable, "-c", start, *_stand_in(meeting)]
    env = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as daemon:
        pid = int(daemon.stdout.readline())
        with identity.Rendezvous(meeting, 0) as rendezvous:
            place = rendezvous.wait(30, lambda: None)
        assert place is not None and processes.is_alive(pid)
        daemon.kill()
        _until(lambda: not processes.is_alive(pid))


class TestSeat:
    def test_ranks_of_a_host_are_neighbours(self):
        hosts = [_host(name) for name in "abacb"]
        assert rank_order(hosts) == [0, 2, 1, 4, 3]
        assert rank_order([_host("a")] * 4, ["n", "m", "n", "m"]) == [0, 2, 1, 3]

    def test_the_secret_is_not_shown(self):
        meeting = Meeting(5)
        assert meeting.secret.hex() not in repr(meeting) and meeting.name not in repr(meeting)

    def test_a_start_that_takes_too_long(self):
        meeting = Meeting(0.5)
        seat = Seat(meeting, "127.0.0.1", _host("second"))
        members = [Member(_host("first"), "192.0.2.1", 1), seat.member]
        with pytest.raises(TimeoutError, match="after 0.5 s MPI .* rank 1 of 2 .* first, second"):
            seat.take(members, 1, {})
        seat.close()

    def test_no_mpi(self):
        meeting = Meeting(30)
        seat = Seat(meeting, "127.0.0.1", _host("first"))
        members = [seat.member, Member(_host("second"), "192.0.2.1", 1)]
        env = {**os.environ, "MPI4PY_LIBMPI": "/no/such/libmpi.so"}
        with pytest.raises(LaunchError, match="needs mpi4py|finds no MPI library"):
            seat.take(members, 0, env)
        seat.close()


@pytest.mark.parametrize("make", [OpenMpi4, OpenMpi5, Mpich, IntelMpi])
def test_launchers_are_told_what_to_call_instead_of_ssh(make):
    mpi = make("1.0")
    variables = mpi.shell_variables("/proc/1/fd/5")
    assert "/proc/1/fd/5" in variables.values()
    # It is what hvdrun takes for the user's own choice as well.
    assert mpi.remote_agent(variables) in variables
    plan = MpiPlan("mpirun", 2, [], ["prog"], mpi_args=mpi.attached)
    plan = plan._replace(hosts=[("a", 1), ("b", 1)], own_address="192.0.2.9")
    if make in (OpenMpi4, OpenMpi5):
        assert "--leave-session-attached" in mpi.attached
    else:
        arguments = " ".join(map(str, mpi._options(plan)))
        assert "-localhost 192.0.2.9" in arguments


def test_a_launcher_knows_nothing_of_the_job_around_it():
    env = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "1",
        "PBS_JOBID": "1",
        "PMI_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_MCA_orte_hnp_uri": "x",
        "HVD_RANK": "1",
        "OMPI_MCA_btl": "tcp",
        "PRTE_MCA_prte_hnp_uri": "x",
        "PRTE_MCA_prte_if_include": "10.0.0.0/8",
        "I_MPI_FABRICS": "shm",
    }
    kept = {"PATH", "OMPI_MCA_btl", "PRTE_MCA_prte_if_include", "I_MPI_FABRICS"}
    assert environment.outside_of_jobs(env) == {name: env[name] for name in kept}
    agents = {"hvd-host-0": ("192.0.2.1", 5)}
    variables = environment.agents_variables(agents, SECRET)
    assert environment.agents(json.loads(json.dumps(variables))) == (agents, SECRET)


def test_threads_are_daemons():
    """A program that ends is not held up."""
    host = agent.Agent(SECRET)
    others = set(threading.enumerate()) - {threading.main_thread()}
    assert all(thread.daemon for thread in others)
    host.close()
