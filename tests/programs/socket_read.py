"""Hang: a read from a peer that accepted the connection and never answers."""

from __future__ import annotations

import os
import socket

from zoo import Training, once, ready


def main() -> None:
    training = Training(0.05)
    training.resume(os.environ.get("WTRAIN_RESUME_FROM"))
    training.train(20)
    if once("hung-once"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            client.sendall(b"GET /shard-0007 HTTP/1.0\r\n\r\n")
            ready()
            client.recv(1)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
