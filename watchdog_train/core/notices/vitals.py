"""The state of a supervisor by its own words, and what a probe answers. Pure.

A probe that fails ends the container, and with it the evidence and the training. So a supervisor
that takes evidence, kills or waits for a restart counts as alive. One that is gone, or whose loop
has not turned for a long time, does not.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Probe = Literal["startup", "liveness", "readiness"]

BLIND_S = 120.0
"""Seconds. A loop without a turn for longer is blind; its longest known turn takes a second."""
BLIND_AT_WORK_S = 900.0
"""The same while it handles a stall or a crash: its evidence could not be collected again."""
AT_WORK = ("collecting", "stopping", "killing", "backoff")


class Vitals(NamedTuple):
    """A supervisor's report about itself, about once a second."""

    pid: int
    start: int
    turned_s: float
    """Last turn of its loop, by the monotonic clock of this machine."""
    state: str
    """Of the run; "unknown" if another version wrote it."""
    attempt: int
    """0 before the first."""
    step: int | None = None
    """The newest of any rank."""
    progressed_s: float | None = None
    """When any rank last made progress; None: none has."""
    trains: bool = False
    """Steps are being made, and nothing is suspected."""
    waits: str = ""
    """What a silent training waits for, and until when; empty: unknown."""


class Answer(NamedTuple):
    ok: bool
    words: str


def answer(
    probe: Probe, vitals: Vitals | None, now: float, *, alive: bool | None, blind_s: float = BLIND_S
) -> Answer:
    """What to report about one run.

    Args:
        probe: the question.
        vitals: None: the supervisor has written nothing, or has no page for it.
        now: by the monotonic clock of this machine.
        alive: whether its process is alive; None: unknown.
        blind_s: longest accepted time without a turn of its loop.
    """
    if vitals is None:
        return _silent(probe, alive=alive)
    told = _told(vitals, now)
    if alive is False:
        if vitals.state == "finished":
            return Answer(probe != "readiness", f"ended: {told}")
        return Answer(False, f"dead: the supervisor (pid {vitals.pid}) is gone; {told}")
    silent_s = blind_for_s(vitals, now, blind_s=blind_s)
    if silent_s is not None:
        words = f"blind: the loop of the supervisor (pid {vitals.pid}) has not turned for"
        return Answer(False, f"{words} {silent_s:.0f} s; {told}")
    if probe == "readiness" and not vitals.trains:
        return Answer(False, f"not ready: {told}")
    return Answer(True, f"{'ready' if probe == 'readiness' else 'alive'}: {told}")


def blind_for_s(vitals: Vitals, now: float, *, blind_s: float = BLIND_S) -> float | None:
    """How long a living supervisor's loop has not turned; None below the limit."""
    silent_s = now - vitals.turned_s
    limit_s = max(blind_s, BLIND_AT_WORK_S) if vitals.state in AT_WORK else blind_s
    return silent_s if silent_s > limit_s and vitals.state != "finished" else None


def _silent(probe: Probe, *, alive: bool | None) -> Answer:
    if alive is False:
        return Answer(False, "dead: its supervisor is gone")
    if probe == "readiness":
        return Answer(False, "not ready: the progress of its supervisor is unknown")
    known = "its supervisor holds the run" if alive else "no sign that its supervisor is dead"
    return Answer(True, f"probably alive: {known}; it reports no progress")


def _told(vitals: Vitals, now: float) -> str:
    parts = [vitals.state]
    if vitals.attempt:
        parts.append(f"attempt {vitals.attempt}")
    if vitals.step is not None:
        parts.append(f"step {vitals.step:,}")
    if vitals.progressed_s is not None:
        parts.append(f"last progress {max(0.0, now - vitals.progressed_s):.0f} s ago")
    return ". ".join(filter(None, (", ".join(parts), vitals.waits.removesuffix("."))))
