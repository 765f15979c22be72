"""One rank of a runner's job: ``python -m hvd_keras.runner [FOLDER [RANK]]``.

It takes the function from ``FOLDER/call`` and leaves what it returns in ``FOLDER/result-RANK``, or
the traceback in ``FOLDER/failure-RANK``. Without a folder it asks the driver for the function, and
tells it the result or the traceback: see driver.py.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_keras.launch import environment
from hvd_keras.launch.schedulers import find_placement
from hvd_keras.runner.driver import DriverAddress
from hvd_keras.runner.driver_log import receiving
from hvd_keras.runner.payload import pack_result, unpack_call
from hvd_keras.settings import Settings

__all__ = [
    "CALL",
    "CallFailedError",
    "failure_file",
    "main",
    "main_over_network",
    "result_file",
    "run_call",
    "use_alias_if_asked",
]

CALL = "call"


class CallFailedError(Exception):
    """The call has failed; the message is its traceback."""


def result_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returns."""
    return folder / f"result-{rank}"


def failure_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves the traceback of the function."""
    return folder / f"failure-{rank}"


def run_call(content: bytes, *before: Any, pack: Callable[[Any], Any] = pack_result) -> Any:
    """Runs a packed call, with ``before`` as its first arguments, and returns the packed result.

    A failure is told to the other ranks, if they have met.

    Args:
        pack: what makes of the result what is returned.

    Raises:
        CallFailedError: the function, or sending it or its result, has failed.
    """
    try:
        function, args, kwargs = unpack_call(content)
        return pack(_called(function, (*before, *args), kwargs))
    except Exception as error:
        text = traceback.format_exc()
        sys.excepthook(type(error), error, error.__traceback__)  # which tells the other ranks
        raise CallFailedError(text) from error


def use_alias_if_asked() -> None:
    """Makes ``import horovod`` give hvd_keras, where the settings say so."""
    if Settings.from_environment().compat:
        from hvd_keras import compat

        compat.install()


def main(folder: Path, rank: int | None = None) -> int:
    """Runs the function and returns the exit code of this process.

    Args:
        folder: where the function is, and its result goes.
        rank: this one; None where the environment says it, which MPI's does in its own way.
    """
    if rank is None:
        rank = Settings.from_environment().rank
    use_alias_if_asked()
    try:
        content = run_call((folder / CALL).read_bytes())
    except CallFailedError as error:
        failure_file(folder, rank).write_text(str(error))
        return 1
    # Written beside its place and renamed: there is never half of it.
    path = result_file(folder, rank)
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(content)
    scratch.replace(path)
    return 0


def main_over_network() -> int:
    """Runs the function that the driver has, and returns the exit code of this process."""
    env = environment.current_environment()
    placement = find_placement(env)
    rank = placement.rank if placement is not None else Settings.from_environment().rank
    use_alias_if_asked()
    address = DriverAddress.from_text(env[environment.DRIVER_VARIABLE])
    with (
        address.connected(rank) as link,
        tempfile.TemporaryDirectory() as folder,
        receiving(Path(folder), link.log) as log_address,
    ):
        environment.export(environment.DRIVER_LOG_VARIABLE, log_address)
        try:
            link.result(run_call(link.call()))
        except CallFailedError as error:
            link.failed(str(error), 1)
            return 1
    return 0


def _called(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        # It would end the process without a result, or, in a process that runs more than one
        # function, all that comes after it.
        raise RuntimeError(
            f"the function has called sys.exit({'' if error.code is None else repr(error.code)}); "
            "expected it to return its result, or to raise an exception"
        ) from error
