"""Running a job over MPI: everything that comes before its supervisor."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvd_keras.launch import environment
from hvd_keras.launch.command import find_program
from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.hosts import HostSlots, check_slots, is_this_machine
from hvd_keras.launch.job import Job, MpiLaunch
from hvd_keras.launch.local import RunningJob
from hvd_keras.launch.mpi_find import find_jsrun, find_mpi
from hvd_keras.launch.mpi_makes import MpiPlan
from hvd_keras.launch.ssh_check import SshOptions, check_ssh, programs_to_find, remote_hosts

_RANK_PROCESS = Path(__file__).with_name("rank_process.py")
DEFAULT_START_SECONDS = 60.0


class MpiOptions(NamedTuple):
    """What hvdrun's options say about MPI; see its help.

    Attributes:
        interfaces: the only network interfaces to use.
        ssh: how ssh is called.
        tcp: whether to use TCP only.
        mpi_args: arguments for the launcher.
        binding_args: arguments for the launcher, instead of hvdrun's own about binding.
        jsrun: whether to start with jsrun.
        start_seconds: how long it may take until all ranks run.
        checks_ssh: whether to check that ssh reaches all hosts.
    """

    interfaces: Sequence[str] = ()
    ssh: SshOptions = SshOptions()
    tcp: bool = False
    mpi_args: Sequence[str] = ()
    binding_args: Sequence[str] = ()
    jsrun: bool = False
    start_seconds: float = DEFAULT_START_SECONDS
    checks_ssh: bool = True


def start_mpi_job(
    command: Sequence[str],
    num_proc: int,
    hosts: Sequence[HostSlots],
    options: MpiOptions,
    env: Mapping[str, str],
    stdout: Any = None,
    stderr: Any = None,
    **job_options: Any,
) -> RunningJob:
    """Starts ``command`` as ``num_proc`` ranks on ``hosts``, and returns the job.

    Args:
        command: the program and its arguments.
        num_proc: number of ranks.
        hosts: the hosts, which are filled in this order.
        options: about MPI.
        env: the environment to start from.
        stdout, stderr: as for :class:`hvd_keras.launch.local.RunningJob`.
        **job_options: fields of :class:`hvd_keras.launch.job.Job`.

    Raises:
        LaunchError: the job could not be started: too few slots, no MPI, a host that cannot be
            reached.
    """
    check_slots(hosts, num_proc)
    cwd = os.getcwd()
    if not command or any(is_this_machine(host) for host, _ in hosts):
        find_program(command, env, cwd)  # elsewhere it is looked for there
    env = environment.with_flight_recorder(environment.without_identity(env))
    env = {**env, environment.EXPECTED_SIZE_VARIABLE: str(num_proc)}
    found = find_jsrun(env) if options.jsrun else find_mpi(command, env)
    used = _first_slots(hosts, num_proc)
    remote = remote_hosts([host for host, _ in used])
    job = Job(command=list(command), program="", num_proc=num_proc, **job_options)
    plan = MpiPlan(
        launcher=found.path,
        num_proc=num_proc,
        hosts=used,
        command=_rank_command(job, cwd),
        interfaces=options.interfaces,
        ssh_arguments=options.ssh.arguments(),
        tcp=options.tcp,
        mpi_args=options.mpi_args,
        binding_args=options.binding_args,
        is_root=os.geteuid() == 0,
    )
    for name, value in found.mpi.rank_variables(plan).items():
        env.setdefault(name, value)
    plan = plan._replace(exported=environment.exported_names(env))
    env.update(found.mpi.variables(plan))
    if remote and options.checks_ssh and not found.mpi.remote_agent(env):
        check_ssh(remote, options.ssh, programs_to_find(found.mpi.daemon, found.path, command), env)
    arguments = found.mpi.arguments(plan)
    if job.verbose:
        _explain(found.mpi.name, arguments)
    launch = MpiLaunch(found.mpi.name, [host for host, _ in used], options.start_seconds)
    kept = {**job_options, "output_dir": None, "prefix": False, "timestamps": False}
    started = Job(arguments, found.path, num_proc, mpi=launch, **kept)
    return RunningJob(started, env, cwd, stdout, stderr)


def _rank_command(job: Job, cwd: str) -> list[str]:
    output_dir = os.path.join(cwd, job.output_dir) if job.output_dir is not None else None
    # hvdrun alone watches the time, so that it can say who is late.
    job = dataclasses.replace(job, output_dir=output_dir, timeout=None)
    # -I -S: neither the user's directory nor site hooks may put modules in the way.
    return [sys.executable, "-I", "-S", str(_RANK_PROCESS), job.to_json(), cwd]


def _first_slots(hosts: Sequence[HostSlots], num_proc: int) -> list[HostSlots]:
    """The hosts that get ranks; the last one may get fewer than it has slots."""
    used = []
    for host, slots in hosts:
        if num_proc > 0:
            used.append(HostSlots(host, min(slots, num_proc)))
            num_proc -= slots
    return used


def _explain(name: str, arguments: Sequence[str]) -> None:
    # The variables would hide the rest.
    shown: list[str] = []
    words = iter(arguments)
    hidden = 0
    for word in words:
        if word in ("-x", "--env", "-genvlist"):
            hidden += len(next(words).split(","))
        else:
            shown.append(word)
    print(
        f"hvdrun: {name}: {shlex.join(shown)} (and {hidden} variables to export)", file=sys.stderr
    )


def parse_words(text: str, option: str) -> list[str]:
    """The words of an option's value, as a shell would see them.

    Raises:
        LaunchError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"{option} {text!r}: {error}.") from error
