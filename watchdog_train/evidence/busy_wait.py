"""Whether a process that keeps a core busy only polls in a loop.

A long computation and a live-lock look the same from outside; their source differs. A loop that is
not known to poll counts as a computation.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from watchdog_train.core.diagnosis.facts import FLAT_CPU_SHARE, ProcessEvidence
from watchdog_train.core.diagnosis.stacks import (
    WAITS,
    Frame,
    ThreadStack,
    frame_matches,
    is_library,
)
from watchdog_train.core.model.explanation import Place
from watchdog_train.core.model.waits import Running
from watchdog_train.explain.waits import deciding_thread, is_ticker, kernel_wait

_ONE_THREAD = 1.2
"""Of a core: above this a second thread works."""
_ASKS = frozenset({
    "acquire", "cancelled", "done", "empty", "exists", "full", "get_nowait", "is_alive",
    "is_completed", "is_dir", "is_file", "is_set", "isdir", "isfile", "len", "lexists", "locked",
    "put_nowait", "qsize", "sched_yield", "sleep",
})  # fmt: skip
"""Calls that change nothing, by name alone. Not those that do work for the caller, such as MPI's
Test(), nor the clock: a loop with a time limit ends without help."""
_PARTS = (
    ast.While, ast.If, ast.Try, ast.ExceptHandler, ast.Expr, ast.Assign, ast.Pass, ast.Continue,
    ast.Break, ast.Return, ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.BoolOp,
    ast.UnaryOp, ast.Not, ast.Compare, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword,
)  # fmt: skip
"""All that such a loop is made of: without arithmetic, inner loops, subscripts or `await`."""


def waiting_loop(tree: ast.Module, function: str, line: int) -> int | None:
    """First line of the `while` that only polls, if `line` of this function is in one."""
    loop: ast.AST | None = None
    inside = "<module>"
    for node in ast.walk(tree):  # outer nodes first
        if not getattr(node, "lineno", line + 1) <= line <= getattr(node, "end_lineno", line):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            inside, loop = getattr(node, "name", "<lambda>"), None
        elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
            loop = node
    if not isinstance(loop, ast.While) or inside != function:
        return None
    return loop.lineno if all(map(_only_asks, ast.walk(loop))) else None


def _only_asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", None)) in _ASKS
    return isinstance(node, _PARTS)


def asks_at(process: ProcessEvidence, parse: Callable[[str], ast.Module | None]) -> Place | None:
    """The loop of its deciding thread, if no other thread of the process does anything."""
    thread, share = deciding_thread(process), process.cpu_share
    if thread is None or share is None or share > _ONE_THREAD:
        return None
    # A process that others starve of CPU time is still seen to be runnable.
    if share < FLAT_CPU_SHARE and not isinstance(kernel_wait(process, thread), Running):
        return None
    # A handler of a signal may end the loop, and a thread that was not seen may work.
    if process.handles_signals != () or len(process.thread_waits) != process.os_threads:
        return None
    if not all(_waits(process, tid, but=thread) for tid in process.thread_waits):
        return None
    frames = thread.frames
    at = next((n for n, frame in enumerate(frames) if not _of_python(frame)), None)
    if at is None or (at and frames[at - 1].name not in _ASKS):
        return None
    frame = frames[at]
    tree = parse(frame.file)
    line = waiting_loop(tree, frame.name, frame.line) if tree is not None else None
    return Place(function=frame.name, file=frame.short, line=line) if line else None


def _of_python(frame: Frame) -> bool:
    """Whether it is of the standard library."""
    name = frame.short.removeprefix("<frozen ").rstrip(">").partition("/")[0].removesuffix(".py")
    return not frame.native and is_library(frame) and name in sys.stdlib_module_names


def _waits(process: ProcessEvidence, tid: int, *, but: ThreadStack) -> bool:
    """Whether a thread is the deciding one, or one that is known to wait."""
    fact = process.thread_waits[tid]
    stack = next((one for one in process.threads if one.os_id == tid), None)
    if stack is but or fact.is_ticker:
        return True
    if stack is None or not stack.frames:
        return fact.unchanged is True
    waits = any(frame_matches(wait, stack.frames[0]) for wait in WAITS)
    timed = getattr(fact.wait, "timed", False)  # a timer's thread acts when its time has come
    return is_ticker(stack) or (fact.state == "S" and waits and not timed)
