"""``horovod.spark.run``, on hvd_keras; its estimators are not carried over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras.compat.forwarding import missing_attribute
from hvd_keras.runner import spark

__all__ = ["run"]


def run(
    fn: Callable,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """``hvd_keras.spark.run``, for ``fn`` that imports ``horovod``.

    Args:
        fn, args, kwargs, num_proc, start_timeout, env, executable: as there.
        stdout: a file for the ranks' output; None for this process's.
        verbose: 0 shows no output of the ranks.

    The other arguments are about MPI, Gloo and networks, and make no difference.
    """
    log = print if stdout is None else lambda text: print(text, file=stdout, flush=True)
    return spark.run(
        fn,
        args,
        kwargs,
        num_proc,
        start_timeout,
        {**(env or {}), "HVD_COMPAT": "1"},
        show_output=bool(verbose),
        log=log,
        executable=executable,
    )


def __getattr__(name: str) -> Any:
    raise missing_attribute(__name__, name)
