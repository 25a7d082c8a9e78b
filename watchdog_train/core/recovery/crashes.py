"""What follows a crash: a table, of which the first row that applies counts. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from watchdog_train.core.diagnosis.error_classes import is_error
from watchdog_train.core.model import CrashFact, Value, WhyCode

Reaction = Literal["stop", "once", "transient", "at-once"]
"""stop: no restart. once: a restart; none if the same happens again without a newer checkpoint.
transient: three restarts, the first at once. at-once: a restart, within the limits of a plan
without progress."""
USAGE_ERROR = 2
"""Exit code of argparse and click."""


class Crash(Value):
    fact: CrashFact
    began: bool
    repeated: int = 0
    """Attempts directly before it that ended the same way, without a newer checkpoint since."""
    resume_added: bool = False
    """The command had an option that wtrain had added."""

    @property
    def text(self) -> str:
        return self.fact.exception.text if self.fact.exception is not None else self.fact.said

    @property
    def type(self) -> str:
        """Of the exception; empty for none."""
        return self.fact.exception.type if self.fact.exception is not None else ""


class Row(NamedTuple):
    what: str
    applies: Callable[[Crash], bool]
    reaction: Reaction
    why_stop: WhyCode = "unknown"


def _is_own_bug(crash: Crash) -> bool:
    """Also if the interpreter itself reports it, without a traceback."""
    return is_error("own-bug", crash.type) or is_error("no-script", crash.fact.said)


def _is_usage_error(crash: Crash) -> bool:
    said = "error:" in crash.fact.said.lower()
    return crash.fact.code == USAGE_ERROR and said and not crash.resume_added


ROWS: tuple[Row, ...] = (
    Row(
        "Ctrl-C in the training, SIGINT, exit code 130",
        lambda c: c.fact.signal == 2 or c.fact.code == 130 or c.type == "KeyboardInterrupt",
        "stop",
        "interrupted",
    ),
    Row(
        "SyntaxError, or a module that does not exist, before the first step",
        lambda c: not c.began and _is_own_bug(c),
        "stop",
        "would-end-so-again",
    ),
    Row(
        "a wrong option (exit code 2 with a usage message) before the first step",
        lambda c: not c.began and _is_usage_error(c),
        "stop",
        "wrong-arguments",
    ),
    Row(
        "a shared library that cannot be opened, a partially initialized module",
        lambda c: is_error("import-may-pass", c.text),
        "once",
    ),
    Row(
        "CUDA out of memory while another process holds memory of the GPU",
        lambda c: c.fact.gpu_shared and is_error("gpu-memory", c.text),
        "transient",
    ),
    Row(
        "CUDA out of memory of the training alone", lambda c: is_error("gpu-memory", c.text), "once"
    ),
    Row(
        "a lost connection, a timeout, HTTP 5xx, ESTALE, EIO, an address in use, NCCL",
        lambda c: is_error("transient", c.text),
        "transient",
    ),
    Row(
        "a missing file on a network file system",
        lambda c: c.fact.network_path and is_error("missing-file", c.text),
        "transient",
    ),
    Row(
        "SIGKILL that wtrain did not send, the kernel's OOM killer",
        lambda c: c.fact.signal == 9,
        "at-once",
    ),
    Row(
        "SIGTERM that wtrain did not send, as before a preemption",
        lambda c: c.fact.signal == 15,
        "at-once",
    ),
    Row("SIGSEGV, SIGBUS, SIGILL, SIGFPE", lambda c: c.fact.signal in (4, 7, 8, 11), "once"),
    Row("SIGABRT", lambda c: c.fact.signal == 6, "once"),
    Row("any other exception, or an exit code without one", lambda _: True, "once"),
)


def row_of(crash: Crash) -> Row:
    return next(row for row in ROWS if row.applies(crash))


def most_repeats(crash: Crash) -> int | None:
    """The most repetitions with which the table still allows one more unchanged attempt; -1: none.

    None: the limits of a plan without progress decide.
    """
    return {"stop": -1, "once": 0, "transient": 2, "at-once": None}[row_of(crash).reaction]
