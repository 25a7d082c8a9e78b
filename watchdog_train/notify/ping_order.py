"""What the child that pings is told; apart from it, because its HTTP costs the supervisor 3 MiB."""

from __future__ import annotations

import msgspec

CHANNEL = "ping"


class PingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how often; the file is deleted by who reads it."""

    url: str
    every_s: float
    blind_s: float
    """Without a byte from the supervisor for so long it is taken for blind."""
