"""The dead-man ping: `python -m watchdog_train.notify.ping ORDER-FILE`, as long as somebody looks.

A service far away raises the alarm when the pings stop. They must stop when nobody watches over
the training any more, so this process pings only while its stdin goes on to bring a byte for each
turn of the supervisor's loop, and ends when it is closed. It says on its stdout, a line of JSON
each, when a ping has failed and when one is heard again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.notify.channels import Answer
from watchdog_train.notify.ping_order import CHANNEL, PingOrder
from watchdog_train.whole_files import take_json

PING_S = 10.0
BLIND_LOOK_S = 1.0
"""Between looks at whether a supervisor that was blind looks again."""
ORDER_CAP_BYTES = 1 << 16


def ping(url: str) -> str | None:
    """Fetch it; why it failed, without the URL in it, or None."""
    request = urllib.request.Request(url, headers={"User-Agent": "wtrain"})  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=PING_S) as answer:  # noqa: S310 - http(s) only
            answer.read(1024)
    except Exception as error:  # noqa: BLE001 - http.client has many, and their words hold the URL
        return why_not(error, PING_S)
    return None


class Rhythm:
    """When to ping: at the interval, and only while somebody looks."""

    def __init__(self, order: PingOrder, now: float) -> None:
        self._order = order
        self._seen_at = now
        self._next = now

    def seen(self, now: float) -> None:
        """The supervisor's loop has turned."""
        self._seen_at = now

    def is_due(self, now: float) -> bool:
        """Whether to ping now; one that was left out while nobody looked is not made up for."""
        if now < self._next or now - self._seen_at > self._order.blind_s:
            return False
        self._next = now + self._order.every_s
        return True

    def wait_s(self, now: float) -> float:
        """Until the next question makes sense."""
        return self._next - now if now < self._next else BLIND_LOOK_S


def _tell(why: str | None) -> None:
    answer = Answer(channel=CHANNEL, sent=why is None, why=why)
    os.write(1, msgspec.json.encode(answer) + b"\n")


def watch(order: PingOrder) -> None:
    """Ping until stdin is closed, which ends this process."""
    rhythm = Rhythm(order, time.monotonic())

    def listen() -> None:
        # A thread, because select() cannot wait for a pipe on Windows.
        with suppress(OSError):
            while os.read(0, 65536):
                rhythm.seen(time.monotonic())
        os._exit(0)  # whoever pinged for is gone; a ping under way must not hold us

    threading.Thread(target=listen, daemon=True).start()
    fails = False
    while True:
        if rhythm.is_due(time.monotonic()):
            why = ping(order.url)
            if (why is not None) != fails:
                fails = why is not None
                _tell(why)
        time.sleep(rhythm.wait_s(time.monotonic()))


def main(argv: list[str]) -> int:
    """Carry out the order in a file."""
    watch(take_json(Path(argv[0]), PingOrder, cap_bytes=ORDER_CAP_BYTES))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def why_not(error: Exception, limit_s: float) -> str:
    """Words for what urlopen() has raised; `limit_s` is the time-out it was given."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the service answered {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {limit_s:.0f} s"
    if not isinstance(error, urllib.error.URLError):
        return type(error).__name__
    return reason.strerror or type(reason).__name__ if isinstance(reason, OSError) else "no URL"
