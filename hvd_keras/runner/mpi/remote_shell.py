"""What an MPI launcher calls instead of ssh: ``remote_shell.py [OPTIONS] HOST COMMAND...``.

It takes the command to the agent of the host, and ends with the command's exit code. When this
process ends, so does the command.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":  # started by path, isolated from the user's modules
    # The package without its __init__.py, which needs others that are not on this path.
    _package = types.ModuleType("hvd_keras")
    _package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["hvd_keras"] = _package

import os
from collections.abc import Sequence

from hvd_keras.launch import environment, processes
from hvd_keras.runner.channel import connect

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Runs the command there, and returns its exit code."""
    processes.die_with_parent()
    words = list(arguments)
    while words and words[0].startswith("-"):
        words.pop(0)  # an option of ssh, such as -x
    host, command = words[0], " ".join(words[1:])  # as ssh joins them
    agents, secret = environment.agents(environment.current_environment())
    with connect([agents[host]], secret) as connection:
        connection.send(command)
        while True:
            kind, content = connection.recv()
            if kind == "exit":
                return content
            os.write(2, content)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (EOFError, OSError) as error:
        sys.exit(f"a host of the job cannot be reached, or is gone: {error or 'no answer'}")
