"""Where the supervisors of a job meet: a directory that all see, or a store at an address. Pure."""

from __future__ import annotations

import re

from watchdog_train.core.model import Value

SCHEME = "tcp://"
_ADDRESS = re.compile(
    r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[^\s/:\[\]@?#]{1,253}))"
    r":(?P<port>\d{1,5})/?\Z"
)


class StorePlace(Value, frozen=True, kw_only=True):
    """The store that the first task of the job holds."""

    host: str
    port: int

    @property
    def words(self) -> str:
        """As it was written."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}{host}:{self.port}"


def is_store(coordination: str) -> bool:
    """Whether this means a store, well written or not; else it is a directory."""
    return coordination.lower().startswith(SCHEME) or "://" in coordination


def store_place(coordination: str) -> StorePlace:
    """The address of a store.

    Raises:
        ValueError: it is none; the message says what is wrong with it.
    """
    if not coordination.lower().startswith(SCHEME):
        raise ValueError("only a directory or tcp://HOST:PORT")
    match = _ADDRESS.match(SCHEME + coordination[len(SCHEME) :])
    if match is None:
        raise ValueError("it has to be tcp://HOST:PORT, an IPv6 address in brackets")
    port = int(match["port"])
    if not 1024 <= port < 1 << 16:
        raise ValueError(f"port {port} is none of 1024 to 65535")
    return StorePlace(host=match["six"] or match["name"], port=port)
