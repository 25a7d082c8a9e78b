"""The line at the bottom of the terminal leaves no trace, whatever the training writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.terminal import Screen
from watchdog_train.supervisor import status_line
from watchdog_train.supervisor.status_line import StatusLine, TrainingScreen

COLUMNS = 40


class Terminal:
    """Collects what is put; nothing ever waits."""

    fd = -1
    at_line_start = True

    def __init__(self) -> None:
        self.data = b""

    def put(self, data: bytes, *, stays: bool = True) -> None:
        self.data += data
        if stays and data:
            self.at_line_start = data.endswith(b"\n")

    def is_empty(self) -> bool:
        return True


PIECES = st.sampled_from(
    [
        *(
            b"step 5 loss 0.4\n",
            b"part of a line",
            b"\n",
            b"\r\n",
            b"x" * 50 + b"\n",
            b"\xc3\xa4\n",
        ),
        *(b"\r 45% |####    |", b"\r 46% |#####   |", b"\rdone\n", b"again\r"),
        *(b"\x1b[31mred\n", b"\x1b[0m", b"\x1b[1mbold\x1b[0m\n", b"\x1b[3", b"2mgreen\n"),
        *(b"\n\r 1%|\x1b[A", b"\x1b[A\x1b[2K", b"\x1b[?25l", b"\x1b[?25h", b"\b", b"\x1b[K"),
    ]
)
STEPS = st.lists(
    st.one_of(
        PIECES,
        st.floats(0.0, 15.0),
        st.sampled_from(["wtrain: step 1", "wtrain: step 2, " + "a long story " * 5]),
        st.just(None),
    ),
    max_size=40,
)


@pytest.fixture(autouse=True)
def _in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "in_foreground", lambda _fd: True)
    monkeypatch.setattr(status_line, "window_size", lambda _fd: (24, COLUMNS))


@given(steps=STEPS, colour=st.booleans())
def test_no_trace_is_left(steps: list[bytes | float | str | None], colour: bool) -> None:
    """Cell for cell and colour for colour the screen is what the training has made of it."""
    terminal = Terminal()
    line = StatusLine(terminal, enabled=True, colour=colour)  # type: ignore[arg-type]
    training = b""
    now = 100.0
    for step in steps:
        if isinstance(step, bytes):
            training += step
            terminal.put(line.make_way(step, now))
        elif isinstance(step, float):
            now += step
        else:
            line.show(step, now=now, said_at=0.0)
    line.hide()
    with_us, without = Screen(COLUMNS).feed(terminal.data), Screen(COLUMNS).feed(training)
    assert with_us.coloured == without.coloured
    assert (with_us.row, with_us.column) == (without.row, without.column)
    assert with_us.colour == without.colour


def drawn(*written: bytes, wait_s: float = 2.0) -> str:
    """What is on the screen when so long after this output a line is shown."""
    terminal = Terminal()
    line = StatusLine(terminal, enabled=True, colour=False)  # type: ignore[arg-type]
    for data in written:
        terminal.put(line.make_way(data, 100.0))
    line.show("wtrain: step 7", now=100.0 + wait_s, said_at=0.0)
    return Screen(COLUMNS).feed(terminal.data).lines[-1] if terminal.data else ""


def test_it_is_drawn_where_it_disturbs_nobody() -> None:
    """After whole lines, and once nothing was written for a second."""
    assert drawn() == "wtrain: step 7"
    assert drawn(b"loss 0.4\n") == "wtrain: step 7"
    assert drawn(b"\x1b[31mloss\x1b[0m 0.4\r\n") == "wtrain: step 7"
    assert drawn(b"loss 0.4\n", wait_s=0.5) == "loss 0.4"


@pytest.mark.parametrize(
    "written",
    [
        pytest.param([b"Continue? "], id="prompt"),
        pytest.param([b"\r 45% |###  |"], id="bar"),
        pytest.param([b"\r100% |#####|\n"], id="bar-just-ended"),
        pytest.param([b"step 4\r"], id="keras"),
        pytest.param([b"\x1b[?25l", b"a live display\n"], id="hidden-cursor"),
        pytest.param([b"\x1b[?10", b"49htext\n"], id="full-screen"),
        pytest.param([b"one\ntwo\n\x1b[2A\x1b[2Kone\ntwo\n"], id="moves"),
    ],
)
def test_it_is_not_drawn_over_what_draws(written: list[bytes]) -> None:
    """Prompts, progress bars, live displays and full screens are left alone."""
    assert "wtrain" not in drawn(*written)


def test_it_comes_back() -> None:
    """Ten seconds after the last drawing; a full screen that was left; a cursor shown again."""
    assert drawn(b"\r100% |#####|\n", wait_s=11.0) == "wtrain: step 7"
    assert drawn(b"\x1b[?1049htext\x1b[?1049l\n", wait_s=11.0) == "wtrain: step 7"
    assert drawn(b"\x1b[?25lbar\n\x1b[?25h", b"\n", wait_s=11.0) == "wtrain: step 7"


def test_a_large_block_is_looked_at_from_its_end() -> None:
    """Output of 100 MB/s must not cost a look at every byte."""
    screen = TrainingScreen()
    screen.wrote(b"\r" * 100_000 + b"x\n" * 100_000, 100.0)
    assert screen.is_calm(102.0)
