"""`python -m watchdog_train.metrics.serve FILE PORT`: /metrics on 127.0.0.1, from a text file.

The file is what the supervisor writes for node_exporter, already in the text format, so nothing of
a library is needed here. Ends when its stdin is closed, which is when the supervisor ends. Says on
stdout, in one line, that it listens, or why it does not.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from watchdog_train.trusted_files import open_read

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FILE_CAP_BYTES = 4 << 20
REQUEST_S = 10.0
"""A client that sends nothing holds its connection no longer."""


class Handler(BaseHTTPRequestHandler):
    """GET /metrics, and nothing else."""

    file = Path()
    timeout = REQUEST_S
    server_version = "wtrain"

    def do_GET(self) -> None:
        """The file as it is now."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        try:
            with open_read(self.file) as file:
                data = file.read(FILE_CAP_BYTES)
        except OSError:
            self.send_error(503, "nothing is written yet")
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Server(ThreadingHTTPServer):
    """One port, for one run."""

    daemon_threads = True
    # Two runs on one port would answer in turns (SO_REUSEADDR on Windows), so the second is told.
    allow_reuse_address = sys.platform != "win32"


def main(argv: list[str]) -> int:
    """Serve until stdin is closed."""
    Handler.file = Path(argv[0])
    try:
        server = Server(("127.0.0.1", int(argv[1])), Handler)
    except OSError as error:
        _say(error.strerror or type(error).__name__)
        return 1
    _say("listening")

    def until_closed() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        os._exit(0)

    threading.Thread(target=until_closed, daemon=True).start()
    server.serve_forever()
    return 0


def _say(words: str) -> None:
    os.write(1, words.encode("utf-8", "replace") + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
