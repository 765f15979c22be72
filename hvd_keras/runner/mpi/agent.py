"""A host's agent: runs there what the MPI launcher on the first host wants run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

from hvd_keras.launch import environment
from hvd_keras.launch.job import Job
from hvd_keras.launch.local import RunningJob
from hvd_keras.runner.channel import Server

__all__ = ["GRACE_SECONDS", "Agent"]

# MPI's daemons remove their files when they are asked to end.
GRACE_SECONDS = 2.0
_READ_BYTES = 65536


class Agent:
    """Runs commands for those who know the job's secret; each ends when its connection does.

    What comes through a connection is a shell's command. The answers are pairs: ("output", bytes)
    any number of times, then ("exit", code). All that runs is ended by ``close``, and when this
    process is gone.
    """

    def __init__(self, secret: bytes) -> None:
        self._jobs: list[RunningJob] = []
        self._lock = threading.Lock()
        self._closed = False
        self._server = Server("", secret, self._serve)
        self.port = self._server.port

    def wait(self, seconds: float) -> None:
        """Waits for the end of all that runs."""
        until = time.monotonic() + seconds
        for thread in self._server.threads:
            thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Ends all that runs, and waits for it."""
        self._server.close()
        with self._lock:
            self._closed = True
            for job in self._jobs:
                job.send_signal(signal.SIGTERM)
        self.wait(2 * GRACE_SECONDS)

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            command = connection.recv()
            read, write = os.pipe()
            with open(read, "rb", buffering=0) as output:
                try:
                    with self._lock:
                        if self._closed:
                            return
                        job = run_kept(["/bin/sh", "-c", command], write)
                        self._jobs.append(job)
                finally:
                    os.close(write)
                self._answer(connection, job, output)

    def _answer(self, connection: Connection, job: RunningJob, output: object) -> None:
        sender = threading.Thread(target=_send_output, args=(connection, output), daemon=True)
        sender.start()
        threading.Thread(target=_end_with, args=(connection, job), daemon=True).start()
        code = job.wait().exit_code
        with self._lock:
            self._jobs.remove(job)
        sender.join()
        connection.send(("exit", code))


def run_kept(command: list[str], output: int, env: dict[str, str] | None = None) -> RunningJob:
    """Starts a command with a supervisor around it, which ends it when this process is gone.

    Args:
        command: its program is a path.
        output: the descriptor for what it writes.
        env: the environment to start from; None for this process's.
    """
    if env is None:
        env = environment.current_environment()
    job = Job(
        command,
        command[0],
        num_proc=1,
        prefix=False,
        report_seconds=0.0,
        grace_seconds=GRACE_SECONDS,
        signal_grace_seconds=GRACE_SECONDS,
    )
    return RunningJob(job, environment.outside_of_jobs(env), "/", output, output)


def _send_output(connection: Connection, output: object) -> None:
    # Whatever is written has to be read, also when nobody wants it any more.
    while data := output.read(_READ_BYTES):  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            connection.send(("output", data))


def _end_with(connection: Connection, job: RunningJob) -> None:
    """Ends the command when the other side of the connection goes away."""
    with contextlib.suppress(OSError, EOFError):
        connection.recv()
    job.send_signal(signal.SIGTERM)
