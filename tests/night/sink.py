"""What a person has at the bedside: a service on 127.0.0.1 that takes messages.

Beside it a tracker that never answers, which belongs to the faults.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CAP_BYTES = 1 << 20


@dataclass(frozen=True)
class Message:
    """One message as it came in."""

    at: float
    channel: str
    """The path that it was sent to."""
    title: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@dataclass
class Sink:
    """Takes POSTs on /plain (JSON of wtrain) and /apprise (a form)."""

    messages: list[Message] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    """Requests that are neither."""

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._tracker = socket.create_server(("127.0.0.1", 0))
        self._asked: list[socket.socket] = []
        for target in (self._server.serve_forever, self._take_and_keep_silent):
            threading.Thread(target=target, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def tracker_port(self) -> int:
        return int(self._tracker.getsockname()[1])

    def lines(self, channel: str) -> list[str]:
        """All lines that one channel was told, in the order in which they came."""
        return [line for one in list(self.messages) if one.channel == channel for line in one.lines]

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._tracker.close()
        for connection in self._asked:
            connection.close()

    def _take_and_keep_silent(self) -> None:
        with suppress(OSError):  # closed
            while True:
                self._asked.append(self._tracker.accept()[0])

    def _take(self, path: str, kind: str, body: bytes) -> None:
        text = body.decode("utf-8", "replace")
        if path == "/plain" and kind == "application/json":
            found = json.loads(text)
            title, told = found["title"], found["message"]
        elif path == "/apprise" and kind == "application/x-www-form-urlencoded":
            fields = urllib.parse.parse_qs(text)
            title, told = fields["title"][0], fields["message"][0]
        else:
            self.strange.append(f"POST {path} {kind}: {text[:200]}")
            return
        self.messages.append(Message(time.time(), path, title, told))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length") or 0), CAP_BYTES)
                body = self.rfile.read(length)
                try:
                    sink._take(self.path, self.headers.get_content_type(), body)
                except (ValueError, KeyError) as error:
                    sink.strange.append(f"POST {self.path}: {error!r}: {body[:200]!r}")
                self._answer()

            def _answer(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
