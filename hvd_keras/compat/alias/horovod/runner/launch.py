"""The command ``horovodrun``."""

import sys

from hvd_keras.compat.horovodrun import main

__all__ = ["run_commandline"]


def run_commandline() -> None:
    """Runs ``hvdrun --compat`` with this process's arguments."""
    sys.exit(main())


if __name__ == "__main__":
    run_commandline()
