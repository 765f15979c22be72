"""Sends bytes over TCP and says how fast: ``stream.py listen``, ``stream.py HOST BYTES``."""

import socket
import sys
import time

PORT = 5000
CHUNK = 1 << 16


def listen() -> None:
    server = socket.create_server(("", PORT))
    print("listening", flush=True)
    connection, _ = server.accept()
    count = 0
    while data := connection.recv(CHUNK):
        count += len(data)
    connection.close()
    print(count)


def send(host: str, nbytes: int) -> None:
    connection = socket.create_connection((host, PORT))
    start = time.perf_counter()
    for _ in range(nbytes // CHUNK):
        connection.sendall(bytes(CHUNK))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # returns when the other has read everything and closed
    print(nbytes * 8 / (time.perf_counter() - start))


if __name__ == "__main__":
    listen() if sys.argv[1] == "listen" else send(sys.argv[1], int(sys.argv[2]))
