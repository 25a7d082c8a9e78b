"""What a thread waits for, in words: the one rendering of a wait. Pure."""

from __future__ import annotations

from watchdog_train.core.model import waits as w

_SHOWN = 3


def wait_words(wait: w.Wait | None) -> str | None:
    """`reads a pipe that only sleep (pid 12) can write to`; None where there is nothing to say."""
    match wait:
        case w.FileWait():
            return _file(wait)
        case w.FileLockWait(path=path, holders=holders):
            by = f"held by {_refs(holders)}" if holders else "whose holder is not known"
            return f"waits for a lock on {path}, {by}"
        case w.PipeWait() | w.TcpWait():
            return _other_end(wait)
        case w.ChildWait(children=children):
            return f"waits for its child {_refs(children)}" if children else "waits for a child"
        case w.MutexWait() | w.SharedSemaphoreWait():
            return _lock(wait)
        case w.SleepWait(left_s=left_s):
            return "sleeps" if left_s is None else f"sleeps for {left_s:.0f} s more at most"
        case w.PollWait(waits=waits):
            known = [words for words in map(wait_words, waits[:_SHOWN]) if words]
            return "waits for one of: " + "; ".join(known) if known else "waits in poll"
        case w.TerminalWait():
            return "waits for somebody to type"
        case w.DeviceWait(path=path):
            return f"waits for {path}"
        case w.DiskWait(path=path) if path:
            return f"waits in the kernel for {path}"
    return None


def is_outside(wait: w.Wait | None, members: frozenset[int]) -> bool:
    """Whether it waits for something that none of these processes could give."""
    match wait:
        case w.FileWait() | w.DeviceWait():
            return True
        case w.FileLockWait(holders=others) | w.TcpWait(others=others):
            return not (isinstance(wait, w.TcpWait) and wait.call == "accept") and not (
                {other.pid for other in others} & members
            )
        case w.PipeWait(others=others):
            return not wait.listens and not {other.pid for other in others} & members
    return False


def _other_end(wait: w.PipeWait | w.TcpWait) -> str:
    match wait:
        case w.PipeWait(listens=True):
            return "waits for connections on a unix socket"
        case w.PipeWait(call=call):
            return f"waits in {call} for {_end(wait.others, complete=wait.complete)}"
        case w.TcpWait(call="accept", address=address):
            return f"waits for connections at {address}"
        case w.TcpWait(address=address, others=others):
            here = f", which is {_refs(others)}" if others else ""
            verb = "connects to" if wait.call == "connect" else f"waits in {wait.call} for"
            return f"{verb} {address}{here}"


def _lock(wait: w.MutexWait | w.SharedSemaphoreWait) -> str:
    match wait:
        case w.MutexWait(owner_lives=False):
            return "waits for a lock that was held when it was forked; its thread is not here"
        case w.MutexWait(owner_tid=owner, timed=timed):
            held = f" that its thread {owner} holds" if owner is not None else ""
            return f"waits for a lock{held}" + ("" if timed else " without a time limit")
        case w.SharedSemaphoreWait(others=others):
            return f"waits for a semaphore shared with {_refs(others) if others else 'nobody'}"


def _file(wait: w.FileWait) -> str:
    where = f" on {wait.network}" if wait.network else ""
    verb = {"open": "opens", "read": "reads", "write": "writes", "sync": "flushes"}.get(wait.call)
    words = f"{verb or 'waits for'} {wait.path}{where}"
    if wait.kind != "fifo":
        return words
    if wait.others:
        return f"{words}, a FIFO of {_refs(wait.others)}"
    nobody = ", a FIFO whose other end nobody has open" if wait.complete else ", a FIFO"
    return words + nobody


def _end(others: w.Refs, *, complete: bool) -> str:
    if others:
        return f"the other end of a pipe or socket, {_refs(others)}"
    return f"a pipe whose other end {'nobody has open' if complete else 'is not known'}"


def _refs(refs: w.Refs) -> str:
    shown = ", ".join(f"{ref.name or 'process'} (pid {ref.pid})" for ref in refs[:_SHOWN])
    return shown if len(refs) <= _SHOWN else f"{shown} and {len(refs) - _SHOWN} more"
