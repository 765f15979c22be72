"""Two ends of a connection that outlives a cut: ``talk.py listen FOLDER``, ``talk.py HOST FOLDER``.

The one that calls sends a line for each file ``say.N`` that appears in the folder; the other writes
the lines that it gets to ``heard.N``. Both write what goes wrong to ``error``.
"""

import socket
import sys
import time
import traceback
from pathlib import Path

PORT = 5001


def listen(folder: Path) -> None:
    server = socket.create_server(("", PORT))
    (folder / "listening").touch()
    connection, _ = server.accept()
    for count, _ in enumerate(connection.makefile()):
        (folder / f"heard.{count}").touch()


def call(host: str, folder: Path) -> None:
    connection = socket.create_connection((host, PORT))
    for count in range(3):
        while not (folder / f"say.{count}").exists():
            time.sleep(0.02)
        connection.sendall(b"line\n")
        (folder / f"said.{count}").touch()
    time.sleep(60)


if __name__ == "__main__":
    where = Path(sys.argv[2])
    try:
        listen(where) if sys.argv[1] == "listen" else call(sys.argv[1], where)
    except BaseException:
        (where / "error").write_text(traceback.format_exc())
        raise
