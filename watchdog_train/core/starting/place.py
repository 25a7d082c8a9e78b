"""Where the tasks of several machines meet: at an address of the first one. Pure."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[^\s/:\[\]@?#]{1,253}))"
    r":(?P<port>\d{1,5})/?",
    re.IGNORECASE,
)


def address_of(coordination: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`.

    Raises:
        ValueError: it is none; the message says why.
    """
    match = _ADDRESS.fullmatch(coordination)
    if match is None:
        raise ValueError("it is not tcp://HOST:PORT, with an IPv6 address in brackets")
    port = int(match["port"])
    if not 1024 <= port < 1 << 16:
        raise ValueError(f"port {port} is none of 1024 to 65535")
    return match["six"] or match["name"], port
