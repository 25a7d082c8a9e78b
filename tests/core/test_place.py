"""Where supervisors meet: what is an address of a store, and what is none."""

from __future__ import annotations

import pytest

from watchdog_train.core.starting.place import StorePlace, is_store, store_place

GOOD = {
    "tcp://node1:29400": StorePlace(host="node1", port=29400),
    "TCP://node1.cluster.example:1024/": StorePlace(host="node1.cluster.example", port=1024),
    "tcp://10.0.0.7:65535": StorePlace(host="10.0.0.7", port=65535),
    "tcp://[fe80::1]:29400": StorePlace(host="fe80::1", port=29400),
}


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_understood(text: str) -> None:
    """Names, numbers, IPv6 in brackets; said back as it can be written."""
    assert is_store(text)
    assert store_place(text) == GOOD[text]
    assert store_place(GOOD[text].words) == GOOD[text]


BAD = {
    "tcp://node1": "tcp://HOST:PORT",
    "tcp://:29400": "tcp://HOST:PORT",
    "tcp://fe80::1:29400": "tcp://HOST:PORT",
    "tcp://user@node1:29400": "tcp://HOST:PORT",
    "tcp://node1:29400/path": "tcp://HOST:PORT",
    "tcp://node1:29400\n": "tcp://HOST:PORT",
    "tcp://node1:80": "port 80 is none",
    "tcp://node1:70000": "port 70000 is none",
    "http://node1:29400": "only a directory or",
    "file:///shared": "only a directory or",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_none_is_refused(text: str) -> None:
    """It is never taken for the name of a directory."""
    assert is_store(text)
    with pytest.raises(ValueError, match=BAD[text]):
        store_place(text)


@pytest.mark.parametrize("text", ["meet", "/shared/meet", "./tcp:", "~/meet", "n1:29400"])
def test_all_else_is_a_directory(text: str) -> None:
    """As it has been before there was a store."""
    assert not is_store(text)
