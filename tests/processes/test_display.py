"""The display: everything in order, whole lines of ours, and never a moment blocked."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.supervisor import display as display_module
from watchdog_train.supervisor.display import Display
from watchdog_train.supervisor.terminal import QUEUE_BYTES


class Reader:
    """Collects what arrives at the other end of a pipe."""

    def __init__(self, fd: int) -> None:
        self.text = b""
        self.thread = threading.Thread(target=self._read, args=(fd,), daemon=True)
        self.thread.start()

    def _read(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while data := os.read(fd, 65536):
                self.text += data


@pytest.fixture
def pipes() -> Iterator[list[int]]:
    """Two pipes: read and write end of stdout, read and write end of stderr."""
    fds = [*os.pipe(), *os.pipe()]
    yield fds
    for fd in fds:
        try:
            os.close(fd)
        except OSError:  # noqa: PERF203
            continue


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


@pytest.fixture
def display(log: Path, pipes: list[int]) -> Iterator[Display]:
    """Shows on the pipes what is written into the log."""
    shown = Display(pipes[1], pipes[3])
    shown.follow({"output": log})
    yield shown
    shown.close()


def rotate(log: Path, display: Display, count: int, size: int) -> None:
    """Write so many files one after the other, of which only the newest two are kept."""
    for number in range(count):
        if log.exists():
            log.replace(f"{log}.1")
        log.write_bytes(b"%d" % number * size)
        display.pump()


def soon() -> float:
    return time.monotonic() + 10


def test_follows_a_file_across_its_rotation(
    tmp_path: Path, pipes: list[int], log: Path, display: Display
) -> None:
    """Bytes before, during and after a rotation all arrive, once and in order."""
    out = Reader(pipes[0])
    assert display.pump() is False
    log.write_bytes(b"one ")
    assert display.pump() is True
    with log.open("ab") as file:
        file.write(b"two ")
    log.rename(f"{log}.1")
    log.write_bytes(b"three ")
    assert display.drain(soon())
    with log.open("ab") as file:
        file.write(b"four")
    assert display.drain(soon())
    wait_until(lambda: out.text == b"one two three four", 5, f"all of it, not {out.text!r}")


def test_a_slow_reader_gets_every_file_that_was_rotated_away(
    tmp_path: Path, pipes: list[int], log: Path, display: Display
) -> None:
    """Three rotations behind, nothing is lost; further behind, the loss is counted and said."""
    piece = QUEUE_BYTES * 2
    rotate(log, display, 4, piece)
    out = Reader(pipes[0])
    assert display.drain(soon())
    wait_until(lambda: len(out.text) == 4 * piece, 10, "everything has arrived")
    assert out.text == b"".join(b"%d" % number * piece for number in range(4))


def test_what_cannot_be_shown_is_said(
    tmp_path: Path, pipes: list[int], log: Path, display: Display
) -> None:
    """A reader that takes nothing holds four files at most, however many there were."""
    rotate(log, display, 7, 1_000_000)
    held = [name for name in os.listdir("/proc/self/fd") if str(log) in _target(name)]
    assert len(held) == 4
    said = wait_until(lambda: os.read(pipes[2], 1000), 5, "the loss is said").decode()
    assert "of output came faster than it could be shown here" in said
    out = Reader(pipes[0])
    assert display.drain(soon())
    wait_until(lambda: out.text.endswith(b"6" * 1_000_000), 10, "the newest has arrived")


def test_readers_of_earlier_attempts_get_all_of_them(tmp_path: Path, pipes: list[int]) -> None:
    """A restart takes nothing from a pipe that is behind; its own output comes after that."""
    display = Display(pipes[1], pipes[3])
    sizes = {1: 8 * QUEUE_BYTES, 2: 100, 3: 0, 4: 3 * QUEUE_BYTES}
    for number, size in sizes.items():
        log = tmp_path / str(number) / "output.log"
        display.follow({"output": log})
        if size:
            log.parent.mkdir()
            log.write_bytes(b"%d" % number * size)
        display.pump()
    out = Reader(pipes[0])
    assert display.drain(soon())
    whole = b"".join(b"%d" % number * size for number, size in sizes.items())
    wait_until(lambda: len(out.text) == len(whole), 10, "everything has arrived")
    assert out.text == whole
    display.close()


def test_gate_is_opened_file_by_file_and_closed_for_a_reader_that_is_gone(
    tmp_path: Path, pipes: list[int]
) -> None:
    """One byte before the first file and one for each that is begun; then the end."""
    log = tmp_path / "output.log"
    heard, gate = os.pipe()
    display = Display(pipes[1], pipes[3])
    display.follow({"output": log}, gates={"output": gate})
    assert os.read(heard, 10) == b"."
    piece = QUEUE_BYTES * 2
    log.write_bytes(b"1" * piece)
    display.pump()
    assert os.read(heard, 10) == b"."
    for number in (b"2", b"3"):
        assert not display.holds_back
        log.replace(tmp_path / "output.log.1")
        log.write_bytes(number * piece)
        display.pump()
    assert display.holds_back, "two files are ahead of a reader who takes nothing"
    first = b""
    while len(first) < piece + 1:
        display.pump()
        if select.select([pipes[0]], [], [], 0.05)[0]:
            first += os.read(pipes[0], piece)

    def told(what: bytes) -> bool:
        display.pump()
        return bool(select.select([heard], [], [], 0)[0]) and os.read(heard, 1) == what

    wait_until(lambda: told(b"."), 10, "the second file is begun")
    assert not display.holds_back
    os.close(pipes[0])
    wait_until(lambda: told(b""), 10, "the gate is closed")
    os.close(heard)


def test_last_wait_is_as_long_as_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipes: list[int], log: Path, display: Display
) -> None:
    """A reader that takes nothing is given up, and that is said."""
    monkeypatch.setattr(display_module, "STILL_S", 0.8)
    log.write_bytes(b"x" * 4 * QUEUE_BYTES)
    began = time.monotonic()
    display.deliver(tmp_path)
    assert 0.8 <= time.monotonic() - began < 10
    said = os.read(pipes[2], 1000).decode()
    what = "wtrain: the reader of stdout has taken nothing for 1 s"
    assert said == f"{what} and gets no more; logs: {tmp_path}\n"


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_two_streams_go_to_two_places(tmp_path: Path, pipes: list[int]) -> None:
    """stdout.log is shown on stdout, stderr.log on stderr."""
    (tmp_path / "stdout.log").write_bytes(b"out")
    (tmp_path / "stderr.log").write_bytes(b"err")
    display = Display(pipes[1], pipes[3])
    display.follow({name: tmp_path / f"{name}.log" for name in ("stdout", "stderr")})
    assert display.drain(soon())
    assert os.read(pipes[0], 100) == b"out"
    assert os.read(pipes[2], 100) == b"err"
    display.close()


def test_adopted_run_is_shown_from_now_on(tmp_path: Path, pipes: list[int]) -> None:
    """What was written before is not shown again."""
    log = tmp_path / "output.log"
    log.write_bytes(b"old ")
    display = Display(pipes[1], pipes[3])
    display.follow({"output": log}, from_end=True)
    display.pump()
    with log.open("ab") as file:
        file.write(b"new")
    assert display.drain(soon())
    assert os.read(pipes[0], 100) == b"new"
    display.close()


def test_our_lines_never_continue_a_line_of_the_training(tmp_path: Path, pipes: list[int]) -> None:
    """It waits for the end of a line that is on its way; a bar, which has none, it leaves."""
    log = tmp_path / "output.log"
    same = pipes[1]
    display = Display(same, os.dup(same))
    display.follow({"output": log})
    display.say("wtrain: begin")
    log.write_bytes(b"first")
    display.pump()
    display.say("wtrain: watching")
    with log.open("ab") as file:
        file.write(b"\r\n\r 45%")
    wait_until(lambda: (display.pump(), display.is_between_lines)[1], 10, "it leaves the bar")
    display.say("wtrain: stall")
    with log.open("ab") as file:
        file.write(b"done\n\r 46%")
    display.pump()
    display.say("wtrain: end")
    assert display.drain(soon())
    shown = os.read(pipes[0], 1000)
    assert shown.startswith(b"wtrain: begin\nfirst\r\n\r 45%\nwtrain: watching\nwtrain: stall\n")
    assert shown.endswith(b"stall\ndone\n\r 46%\nwtrain: end\n")
    display.close()


def test_stuck_reader_never_blocks_us(pipes: list[int], log: Path, display: Display) -> None:
    """A reader that takes nothing costs no time and bounded memory; nothing is lost when it does.

    The file is the buffer.
    """
    size = 20 * QUEUE_BYTES
    log.write_bytes(bytes(range(256)) * (size // 256))
    began = time.monotonic()
    while display.pump():
        pass
    display.say("wtrain: still here")
    assert time.monotonic() - began < 2.0
    assert display.drain(time.monotonic() + 0.1) is False
    assert os.read(pipes[2], 100) == b"wtrain: still here\n"
    out = Reader(pipes[0])
    assert display.drain(soon())
    wait_until(lambda: len(out.text) == size, 10, "everything has arrived")
    assert out.text == log.read_bytes()


def test_gone_reader_ends_the_display_only(pipes: list[int], log: Path, display: Display) -> None:
    """`wtrain run ... | head`: after EPIPE nothing more is shown there, and nothing fails."""
    log.write_bytes(b"text")
    os.close(pipes[0])
    assert display.drain(soon())
    log.write_bytes(b"text and more")
    wait_until(lambda: not display.pump(), 5, "the display has ended")
    assert display.drain(soon())
    display.say("wtrain: goes on")
    assert display.drain(soon())
    assert os.read(pipes[2], 100) == b"wtrain: goes on\n"


def test_full_disk_under_the_output_is_said(tmp_path: Path, pipes: list[int]) -> None:
    """`wtrain run ... >file`: what the file does not take is not lost without a word."""
    log = tmp_path / "output.log"
    log.write_bytes(b"text")
    with open("/dev/full", "wb", buffering=0) as full:
        display = Display(full.fileno(), pipes[3])
        display.follow({"output": log})
        assert display.drain(soon())
        wait_until(lambda: display.pump() or display.drain(soon()), 5, "it is over")
    said = os.read(pipes[2], 1000)
    assert said == b"wtrain: output cannot be written any more: No space left on device\n"
    display.close()


def test_terminal_that_hangs_up(tmp_path: Path) -> None:
    """A terminal whose window is closed gives EIO: the display ends, we do not."""
    master, slave = pty.openpty()
    log = tmp_path / "output.log"
    log.write_bytes(b"text")
    display = Display(slave, slave)
    assert display.stderr_is_terminal
    os.close(master)
    display.follow({"output": log})
    assert display.drain(soon())
    display.say("into the void")
    assert display.drain(soon())
    os.close(slave)
    display.close()


def test_hang_up_signal_leaves_the_terminal(tmp_path: Path) -> None:
    """After leave_terminal nothing is written to it any more."""
    master, slave = pty.openpty()
    display = Display(slave, slave)
    display.leave_terminal()
    display.say("nobody reads this")
    assert display.drain(soon())
    os.set_blocking(master, False)
    with pytest.raises(BlockingIOError):
        os.read(master, 100)
    os.close(master)
    os.close(slave)
    display.close()


def test_shared_terminal_keeps_its_settings(pipes: list[int], log: Path, display: Display) -> None:
    """Our descriptors stay blocking: the shell and the training share them."""
    log.write_bytes(b"text")
    assert display.drain(soon())
    assert os.get_blocking(pipes[1])
    assert os.get_blocking(pipes[3])


def test_descriptor_that_somebody_made_nonblocking(
    pipes: list[int], log: Path, display: Display
) -> None:
    """A full pipe that refuses instead of blocking loses nothing."""
    size = 300_000
    os.set_blocking(pipes[1], False)
    log.write_bytes(b"x" * size)
    assert display.drain(time.monotonic() + 0.1) is False
    out = Reader(pipes[0])
    assert display.drain(soon())
    wait_until(lambda: len(out.text) == size, 5, "everything has arrived")
