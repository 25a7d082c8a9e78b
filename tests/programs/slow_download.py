"""Healthy: a download at 10 kB/s from a local server process before the first step."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time

from zoo import Training, ready

LONG_S = float(os.environ.get("LONG_S", "12"))


def serve(server: socket.socket) -> None:
    """Sends 1,000 bytes every tenth of a second, then closes."""
    connection, _ = server.accept()
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        connection.sendall(bytes(1_000))
        time.sleep(0.1)
    connection.close()


def main() -> None:
    training = Training(0.05)
    training.train(20)
    server = socket.create_server(("127.0.0.1", 0))
    helper = multiprocessing.get_context("fork").Process(target=serve, args=(server,))
    helper.start()
    client = socket.create_connection(server.getsockname())
    ready()
    size = 0
    while data := client.recv(65536):
        size += len(data)
    helper.join()
    print(f"downloaded {size > 0}", flush=True)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
