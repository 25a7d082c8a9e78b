"""Readers of /proc, on texts; no process is started."""

from __future__ import annotations

import socket
import struct

import pytest

from watchdog_train.supervisor.display import wants_colour
from watchdog_train.system import proc
from watchdog_train.system.sock_diag import MESSAGE_BYTES, parse_message

FIELDS = "S 7 3 3 0 -1 4194560 1 2 3 4 50 25 7 3 20 0 4 0 268441 1 2 3"


@pytest.mark.parametrize("name", ["python", "a b", "(sd-pam)", ") R 1 2 (", "", "x\ny"])
def test_stat_with_any_name(name: str) -> None:
    """The fields are found behind the last parenthesis, whatever the name is."""
    found = proc.parse_stat(f"42 ({name}) {FIELDS}\n".encode())
    assert found == proc.Stat(42, name, "S", 7, 75, 10, 4, 268441, 3, 0)
    assert not found.is_dead


@pytest.mark.parametrize("text", [b"", b"42", b"42 (x) S 1", b"x (y) " + FIELDS.encode()])
def test_torn_stat_is_unknown(text: bytes) -> None:
    assert proc.parse_stat(text) is None


@pytest.mark.parametrize(("state", "threads", "dead"), [("Z", 1, True), ("Z", 2, False)])
def test_zombie_with_threads_is_not_dead(state: str, threads: int, dead: bool) -> None:
    """Only a zombie without living threads is dead."""
    stat = proc.Stat(42, "x", state, 1, 0, 0, threads, 5, 1, 0)
    assert stat.is_dead is dead


def test_io_needs_both_counters() -> None:
    assert proc.parse_io_bytes(b"rchar: 10\nwchar: 5\nsyscr: 1\n") == 15
    assert proc.parse_io_bytes(b"rchar: 10\n") is None


def test_environment_takes_the_named_only() -> None:
    """Values may contain '=' and undecodable bytes; other variables stay where they are."""
    text = b"A=1\0B=x=y\0C=\xff\0broken\0D=4\0"
    assert proc.parse_environment(text, ["B", "C", "E", "broken"]) == {"B": "x=y", "C": "\udcff"}


MOUNTS = rb"""22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw shared:5 - nfs4 host:/data rw
31 30 0:41 / /data/scratch rw - lustre mds:/x rw
32 22 0:42 / /my\040disk rw shared:6 master:2 - tmpfs tmpfs rw
33 22 0:43 / /over rw - ext4 /dev/sdb rw
34 33 0:44 / /over rw - fuse.sshfs me@host rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home", "ext4"),
        ("/data", "nfs4"),
        ("/data/runs/x", "nfs4"),
        ("/database", "ext4"),
        ("/data/scratch/y", "lustre"),
        ("/my disk/z", "tmpfs"),
        ("/over/it", "fuse.sshfs"),
    ],
)
def test_mount_that_holds_a_path(path: str, kind: str) -> None:
    """The longest mount point wins, and the last of equal ones."""
    assert proc.mount_type(MOUNTS, path) == kind


def diag_message(*attributes: bytes) -> bytes:
    head = bytearray(MESSAGE_BYTES)
    head[44:52] = b"cookie!!"
    struct.pack_into("=I", head, 68, 4711)
    return bytes(head) + b"".join(attributes)


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def test_tcp_counters_of_a_message() -> None:
    """Acknowledged and received bytes are added, other attributes are passed over."""
    info = bytes(120) + struct.pack("=QQ", 1000, 234) + bytes(50)
    message = diag_message(attribute(8, b"\1"), attribute(2, info))
    found = parse_message(message)
    cookie, connection = found
    assert (cookie, connection.inode, connection.moved_bytes) == (b"cookie!!", 4711, 1234)


def test_both_ends_of_a_connection_are_told_alike_by_ipv4_and_ipv6() -> None:
    """An IPv6 socket shows its IPv4 peer in a mapped form; ports are in network order."""
    info = attribute(2, bytes(120) + struct.pack("=QQ", 1, 1))
    message = bytearray(diag_message(info))
    message[0] = socket.AF_INET
    struct.pack_into(">HH", message, 4, 29500, 40000)
    message[8:12] = bytes((127, 0, 0, 1))
    message[24:28] = bytes((10, 0, 0, 7))
    found = parse_message(bytes(message))
    mapped = bytes(10) + b"\xff\xff"
    assert found[1].here == (mapped + bytes((127, 0, 0, 1)), 29500)
    assert found[1].there == (mapped + bytes((10, 0, 0, 7)), 40000)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes(71),
        diag_message(),
        diag_message(attribute(2, bytes(100))),
        diag_message(bytes(4)),
    ],
)
def test_message_without_counters(message: bytes) -> None:
    """A short or old answer carries nothing, and never ends in a loop."""
    assert parse_message(message) is None


@pytest.mark.parametrize(
    ("environ", "terminal", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
    ],
)
def test_colour(environ: dict[str, str], terminal: bool, colour: bool) -> None:
    assert wants_colour(environ, is_terminal=terminal) is colour
