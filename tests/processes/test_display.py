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


class Screen:
    """Shows on two pipes what is written into a log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "output.log"
        self.out, self.stdout = os.pipe()
        self.err, self.stderr = os.pipe()
        self.display = Display(self.stdout, self.stderr)
        self.pump, self.say = self.display.pump, self.display.say

    def write(self, text: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(text)

    def drain(self) -> bool:
        return self.display.drain(time.monotonic() + 10)

    def reads_all(self, count: int) -> bytes:
        """What a reader that comes now gets."""
        out = Reader(self.out)
        assert self.drain()
        wait_until(lambda: len(out.text) == count, 10, "everything has arrived")
        return out.text


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Screen]:
    """One that does not follow the log yet."""
    made = Screen(tmp_path)
    yield made
    made.display.close()
    for fd in (made.out, made.stdout, made.err, made.stderr):
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture
def screen(idle: Screen) -> Screen:
    idle.display.follow({"output": idle.log})
    return idle


def rotate(screen: Screen, count: int, size: int) -> None:
    """Write so many files one after the other, of which only the newest two are kept."""
    for number in range(count):
        if screen.log.exists():
            screen.log.replace(f"{screen.log}.1")
        screen.write(b"%d" % number * size)
        screen.pump()


def test_follows_a_file_across_its_rotation(screen: Screen) -> None:
    """Bytes before, during and after a rotation all arrive, once and in order."""
    out = Reader(screen.out)
    assert screen.pump() is False
    screen.write(b"one ")
    assert screen.pump() is True
    screen.write(b"two ")
    screen.log.rename(f"{screen.log}.1")
    screen.write(b"three ")
    assert screen.drain()
    screen.write(b"four")
    assert screen.drain()
    wait_until(lambda: out.text == b"one two three four", 5, f"all of it, not {out.text!r}")


def test_a_slow_reader_gets_every_file_that_was_rotated_away(screen: Screen) -> None:
    """Three rotations behind, nothing is lost; further behind, the loss is counted and said."""
    piece = QUEUE_BYTES * 2
    rotate(screen, 4, piece)
    assert screen.reads_all(4 * piece) == b"".join(b"%d" % number * piece for number in range(4))


def test_what_cannot_be_shown_is_said(screen: Screen) -> None:
    """A reader that takes nothing holds four files at most, however many there were."""
    rotate(screen, 7, 1_000_000)
    held = [name for name in os.listdir("/proc/self/fd") if str(screen.log) in _target(name)]
    assert len(held) == 4
    said = wait_until(lambda: os.read(screen.err, 1000), 5, "the loss is said").decode()
    assert "of output came faster than it could be shown here" in said
    out = Reader(screen.out)
    assert screen.drain()
    wait_until(lambda: out.text.endswith(b"6" * 1_000_000), 10, "the newest has arrived")


def test_readers_of_earlier_attempts_get_all_of_them(idle: Screen) -> None:
    """A restart takes nothing from a pipe that is behind; its own output comes after that."""
    sizes = {1: 8 * QUEUE_BYTES, 2: 100, 3: 0, 4: 3 * QUEUE_BYTES}
    for number, size in sizes.items():
        log = idle.folder / str(number) / "output.log"
        idle.display.follow({"output": log})
        if size:
            log.parent.mkdir()
            log.write_bytes(b"%d" % number * size)
        idle.pump()
    whole = b"".join(b"%d" % number * size for number, size in sizes.items())
    assert idle.reads_all(len(whole)) == whole


def test_gate_is_opened_file_by_file_and_closed_for_a_reader_that_is_gone(idle: Screen) -> None:
    """One byte before the first file and one for each that is begun; then the end."""
    heard, gate = os.pipe()
    display, log = idle.display, idle.log
    display.follow({"output": log}, gates={"output": gate})
    assert os.read(heard, 10) == b"."
    piece = QUEUE_BYTES * 2
    log.write_bytes(b"1" * piece)
    display.pump()
    assert os.read(heard, 10) == b"."
    for number in (b"2", b"3"):
        assert not display.holds_back
        log.replace(f"{log}.1")
        log.write_bytes(number * piece)
        display.pump()
    assert display.holds_back, "two files are ahead of a reader who takes nothing"
    first = b""
    while len(first) < piece + 1:
        display.pump()
        if select.select([idle.out], [], [], 0.05)[0]:
            first += os.read(idle.out, piece)

    def told(what: bytes) -> bool:
        display.pump()
        return bool(select.select([heard], [], [], 0)[0]) and os.read(heard, 1) == what

    wait_until(lambda: told(b"."), 10, "the second file is begun")
    assert not display.holds_back
    os.close(idle.out)
    wait_until(lambda: told(b""), 10, "the gate is closed")
    os.close(heard)


def test_last_wait_is_as_long_as_somebody_reads(
    monkeypatch: pytest.MonkeyPatch, screen: Screen
) -> None:
    """A reader that takes nothing is given up, and that is said."""
    monkeypatch.setattr(display_module, "STILL_S", 0.8)
    screen.write(b"x" * 4 * QUEUE_BYTES)
    began = time.monotonic()
    screen.display.deliver(screen.folder)
    assert 0.8 <= time.monotonic() - began < 10
    said = os.read(screen.err, 1000).decode()
    what = "wtrain: the reader of stdout has taken nothing for 1 s"
    assert said == f"{what} and gets no more; logs: {screen.folder}\n"


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_two_streams_go_to_two_places(idle: Screen) -> None:
    """stdout.log is shown on stdout, stderr.log on stderr."""
    files = {name: idle.folder / f"{name}.log" for name in ("stdout", "stderr")}
    for name, path in files.items():
        path.write_text(name)
    idle.display.follow(files)
    assert idle.drain()
    assert os.read(idle.out, 100) == b"stdout"
    assert os.read(idle.err, 100) == b"stderr"


def test_adopted_run_is_shown_from_now_on(idle: Screen) -> None:
    """What was written before is not shown again."""
    idle.write(b"old ")
    idle.display.follow({"output": idle.log}, from_end=True)
    idle.pump()
    idle.write(b"new")
    assert idle.drain()
    assert os.read(idle.out, 100) == b"new"


def test_our_lines_never_continue_a_line_of_the_training(idle: Screen) -> None:
    """It waits for the end of a line that is on its way; a bar, which has none, it leaves."""
    display = Display(idle.stdout, os.dup(idle.stdout))
    display.follow({"output": idle.log})
    display.say("wtrain: begin")
    idle.write(b"first")
    display.pump()
    display.say("wtrain: watching")
    idle.write(b"\r\n\r 45%")
    wait_until(lambda: (display.pump(), display.is_between_lines)[1], 10, "it leaves the bar")
    display.say("wtrain: stall")
    idle.write(b"done\n\r 46%")
    display.pump()
    display.say("wtrain: end")
    assert display.drain(time.monotonic() + 10)
    shown = os.read(idle.out, 1000)
    assert shown.startswith(b"wtrain: begin\nfirst\r\n\r 45%\nwtrain: watching\nwtrain: stall\n")
    assert shown.endswith(b"stall\ndone\n\r 46%\nwtrain: end\n")
    display.close()


def test_stuck_reader_never_blocks_us(screen: Screen) -> None:
    """A reader that takes nothing costs no time and bounded memory; nothing is lost when it does.

    The file is the buffer.
    """
    size = 20 * QUEUE_BYTES
    screen.write(bytes(range(256)) * (size // 256))
    began = time.monotonic()
    while screen.pump():
        pass
    screen.say("wtrain: still here")
    assert time.monotonic() - began < 2.0
    assert screen.display.drain(time.monotonic() + 0.1) is False
    assert os.read(screen.err, 100) == b"wtrain: still here\n"
    assert screen.reads_all(size) == screen.log.read_bytes()


def test_gone_reader_ends_the_display_only(screen: Screen) -> None:
    """`wtrain run ... | head`: after EPIPE nothing more is shown there, and nothing fails."""
    screen.write(b"text")
    os.close(screen.out)
    assert screen.drain()
    screen.write(b" and more")
    wait_until(lambda: not screen.pump(), 5, "the display has ended")
    assert screen.drain()
    screen.say("wtrain: goes on")
    assert screen.drain()
    assert os.read(screen.err, 100) == b"wtrain: goes on\n"


def test_full_disk_under_the_output_is_said(idle: Screen) -> None:
    """`wtrain run ... >file`: what the file does not take is not lost without a word."""
    idle.write(b"text")
    with open("/dev/full", "wb", buffering=0) as full:
        display = Display(full.fileno(), idle.stderr)
        display.follow({"output": idle.log})
        assert display.drain(time.monotonic() + 10)
        wait_until(lambda: display.pump() or display.drain(time.monotonic() + 10), 5, "it is over")
    said = os.read(idle.err, 1000)
    assert said == b"wtrain: output cannot be written any more: No space left on device\n"
    display.close()


@pytest.fixture
def window() -> Iterator[tuple[int, Display]]:
    """The other end of a terminal, and what is shown on it."""
    master, slave = pty.openpty()
    display = Display(slave, slave)
    yield master, display
    display.close()
    for fd in (master, slave):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_terminal_that_hangs_up(tmp_path: Path, window: tuple[int, Display]) -> None:
    """A terminal whose window is closed gives EIO: the display ends, we do not."""
    master, display = window
    (tmp_path / "output.log").write_bytes(b"text")
    assert display.stderr_is_terminal
    os.close(master)
    display.follow({"output": tmp_path / "output.log"})
    assert display.drain(time.monotonic() + 10)
    display.say("into the void")
    assert display.drain(time.monotonic() + 10)


def test_hang_up_signal_leaves_the_terminal(window: tuple[int, Display]) -> None:
    """After leave_terminal nothing is written to it any more."""
    master, display = window
    display.leave_terminal()
    display.say("nobody reads this")
    assert display.drain(time.monotonic() + 10)
    os.set_blocking(master, False)
    with pytest.raises(BlockingIOError):
        os.read(master, 100)


def test_shared_terminal_keeps_its_settings(screen: Screen) -> None:
    """Our descriptors stay blocking: the shell and the training share them."""
    screen.write(b"text")
    assert screen.drain()
    assert all(os.get_blocking(fd) for fd in (screen.stdout, screen.stderr))


def test_descriptor_that_somebody_made_nonblocking(screen: Screen) -> None:
    """A full pipe that refuses instead of blocking loses nothing."""
    os.set_blocking(screen.stdout, False)
    screen.write(b"x" * 300_000)
    assert screen.display.drain(time.monotonic() + 0.1) is False
    screen.reads_all(300_000)
