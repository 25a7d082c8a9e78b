"""Where the tasks of several machines meet: what is an address, and what is none."""

from __future__ import annotations

import pytest

from watchdog_train.core.starting.jobs import address_of

GOOD = {
    "tcp://node1:29400": ("node1", 29400),
    "TCP://node1.cluster.example:1024/": ("node1.cluster.example", 1024),
    "tcp://10.0.0.7:65535": ("10.0.0.7", 65535),
    "tcp://[fe80::1]:29400": ("fe80::1", 29400),
}
BAD = {
    "tcp://node1": "tcp://HOST:PORT",
    "tcp://:29400": "tcp://HOST:PORT",
    "tcp://fe80::1:29400": "tcp://HOST:PORT",
    "tcp://user@node1:29400": "tcp://HOST:PORT",
    "tcp://node1:29400/path": "tcp://HOST:PORT",
    "tcp://node1:29400\n": "tcp://HOST:PORT",
    "tcp://node1:80": "port 80 is none",
    "tcp://node1:70000": "port 70000 is none",
    "http://node1:29400": "tcp://HOST:PORT",
    "node1:29400": "tcp://HOST:PORT",
    "/shared/meet": "tcp://HOST:PORT",
}


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_understood(text: str) -> None:
    """Names, numbers, IPv6 in brackets."""
    assert address_of(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_none_is_refused(text: str) -> None:
    """A directory, too."""
    with pytest.raises(ValueError, match=BAD[text]):
        address_of(text)
