"""The process that sends: `python -m watchdog_train.notify.send ORDER-FILE`.

It reads the order, deletes its file, sends the message and writes the answer. Its parent
kills it at a deadline, so it may wait for a service that never answers.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import msgspec

from watchdog_train.evidence.redact import redact_data
from watchdog_train.notify import PLAIN, Answer, Message, Order, scheme_of
from watchdog_train.whole_files import replace_json, take_json

CHANNEL_S = 10.0
"""For each answer of the network, and for all of them together."""
ORDER_CAP_BYTES = 1 << 20


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A POST that is redirected would arrive as a GET without its message."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def send(url: str, message: Message) -> str | None:
    """Send to one channel; why it failed, without the URL in it, or None."""
    scheme = scheme_of(url)
    if scheme not in PLAIN:
        return _with_apprise(url, message)
    place = url.strip().partition("://")[2]
    host, slash, path = place.partition("/")
    login, _, host = host.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "wtrain"}
    if login:
        # urllib takes a login in a URL for a part of the host's name.
        plain = urllib.parse.unquote(login).encode("utf-8")
        headers["Authorization"] = f"Basic {base64.b64encode(plain).decode('ascii')}"
    target = f"{scheme}://{host}{slash}{path}"
    request = urllib.request.Request(  # noqa: S310 - http and https only, see PLAIN
        target,
        data=msgspec.json.encode(message),
        headers=headers,
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=CHANNEL_S) as answer:
            answer.read(1024)
    except Exception as error:  # noqa: BLE001 - http.client has many, and their words hold the URL
        return _why_not(error)
    return None


def _why_not(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the service answered {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {CHANNEL_S:.0f} s"
    if not isinstance(error, urllib.error.URLError):
        return type(error).__name__
    return reason.strerror or type(reason).__name__ if isinstance(reason, OSError) else "no URL"


def _with_apprise(url: str, message: Message) -> str | None:
    try:
        import apprise

        sender = apprise.Apprise()
        if not sender.add(url):
            return "apprise does not understand this URL"
        return (
            None
            if sender.notify(title=message.title, body=message.message)
            else ("the service did not take it")
        )
    except Exception as error:  # noqa: BLE001 - a plugin of apprise may raise anything
        return type(error).__name__


def deliver(url: str, message: Message) -> str | None:
    """Send without secrets, within CHANNEL_S; why it failed, or None."""
    clean = msgspec.convert(redact_data(message), Message)
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(send(url, clean)), daemon=True)
    thread.start()
    thread.join(CHANNEL_S)
    return found[0] if found else f"no answer within {CHANNEL_S:.0f} s"


def main(argv: list[str]) -> int:
    order = take_json(Path(argv[0]), Order, cap_bytes=ORDER_CAP_BYTES)
    replace_json(Path(order.out), Answer(why=deliver(order.url, order.message)))
    sys.stdout.flush()
    os._exit(0)  # a thread that still waits for its service must not hold us


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
