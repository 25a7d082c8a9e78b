"""What must be true at the end of every case."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tests.led import logs, runs
from tests.node_repeats.case import STEPS, Case, progress
from tests.nodes import NODES
from tests.support import MARKER, Event, marked_processes, of_type, wait_until
from watchdog_train.store.lock import is_held

_OUR_FRAME = re.compile(r'File ".*/watchdog_train/(?!client/)')
_LEFT_S = 10.0


def after(case: Case, weights: str) -> list[str]:
    """All problems of a job that has ended."""
    return [*_training(case, weights), *_plans(case), *_order(case), *_words(case), *_left(case)]


def _training(case: Case, weights: str) -> Iterable[str]:
    """Every rank at the last step, with the weights of an undisturbed training; little was lost."""
    said = case.said()
    newest = max((int(each["attempt"]) for word, each in said if word == "began"), default=0)
    finished = [each for word, each in said if word == "finished"]
    # Ranks that outlive their torchrun may be done before anybody ends them, and once more.
    last = sorted(int(each["rank"]) for each in finished if int(each["attempt"]) == newest)
    if last != list(range(2 * NODES)):
        yield f"ranks {last} finished in attempt {newest}, not every rank once"
    for each in finished:
        if each["weights"] != weights and int(each["step"]) == STEPS:
            yield f"rank {each['rank']} has weights {each['weights']}, undisturbed {weights}"
    for attempt in range(2, newest + 1):
        begun = _begun(said, attempt)
        saved = [int(e["step"]) for w, e in said if w == "saved" and int(e["attempt"]) < attempt]
        if len(begun) != 1:
            yield f"the ranks of attempt {attempt} began at {sorted(begun)}"
        elif min(begun) < max(saved, default=0):
            yield f"attempt {attempt} began at {min(begun)}, step {max(saved)} was saved"
        else:
            reached = reached_by(case, attempt)
            case.seconds["lost steps"] = max(0, reached - min(begun))


def _begun(said: list[tuple[str, dict[str, str]]], attempt: int) -> set[int]:
    """The steps at which the ranks of an attempt have begun."""
    return {
        int(each["from"])
        for word, each in said
        if word == "began" and int(each["attempt"]) == attempt
    }


def reached_by(case: Case, attempt: int) -> int:
    """The last step that the attempts before this one have recorded."""
    steps = [
        each["progress"]["step"] or 0
        for log in logs(case.cwd).values()
        for each in progress(log)
        if each["attempt"] < attempt
    ]
    return max(steps, default=0)


def _plans(case: Case) -> Iterable[str]:
    """Attempt by attempt the same checkpoint and the same meeting of torchrun on both nodes."""
    found = {node: _told(events) for node, events in logs(case.cwd).items()}
    if sorted(found) != list(range(NODES)):
        yield f"there are event logs of nodes {sorted(found)}"
        return
    said = case.said()
    # Restarted, an agent has a new log.
    for attempt in sorted(found[1] if case.restarted else found[0].keys() | found[1].keys()):
        one, other = found[0].get(attempt), found[1].get(attempt)
        if one != other:
            yield f"attempt {attempt} has the plans {one} and {other}"
        elif one is not None and attempt > 1:
            begun = _begun(said, attempt)
            if begun and begun != {one[0] or 0}:
                yield f"attempt {attempt} began at {begun}, its plan says {one[0]}"


def _told(events: list[Event]) -> dict[int, tuple[int | None, str, str]]:
    plans = [each["plan"] for each in of_type(events, "attempt_launching")]
    return {
        plan["attempt"]: (
            plan["checkpoint"]["step"] if plan["checkpoint"] else None,
            plan["env"]["PET_RDZV_ID"],
            plan["env"]["PET_RDZV_ENDPOINT"],
        )
        for plan in plans
    }


def _order(case: Case) -> Iterable[str]:
    """No launch over a live tree; the leader has the evidence of a hang before it signals."""
    for node, events in logs(case.cwd).items():
        lives: set[str] = set()
        collected: set[str] = set()
        for event in events:
            host = event.get("host", "")
            match event["type"]:
                case "attempt_launched":
                    if host in lives:
                        yield f"node {node} launched attempt {event['attempt']} over another one"
                    lives.add(host)
                    collected.discard(host)
                case "tree_gone" | "machine_lost":
                    lives.discard(host)
                case "evidence_collected":
                    collected.add(host)
                case "signalling" if event["sequence"] == "hang" and node == 0:
                    if host not in collected:
                        yield f"node {host or 0} had a signal for a hang before its evidence"


def _words(case: Case) -> Iterable[str]:
    for path in case.cwd.glob(".command-*.err"):
        text = path.read_text("utf-8", "replace")
        if "a bug of" in text or _OUR_FRAME.search(text):  # not a training's own traceback
            yield f"wtrain has a bug: {text[-1500:]}"


def _left(case: Case) -> Iterable[str]:
    """Nobody and nothing of it, on neither side."""
    marker = os.environ[MARKER]
    try:
        wait_until(lambda: not marked_processes(marker), _LEFT_S, "all processes have ended")
    except AssertionError:
        yield f"processes are left: {marked_processes(marker)}"
    if case.network is not None and case.network.pids().strip():
        yield "something lives in the networks"
    home = case.cwd / ".home"
    records = [*(home / "runtime").rglob("*")]
    if records:
        yield f"private folders are left: {[str(path) for path in records[:12]]}"
    entries = [path.name for path in (home / "state").rglob("runs/*.json")]
    if entries:
        yield f"still listed as live: {entries}"
    for run in runs(case.cwd).values():
        memory = [path.name for path in Path("/dev/shm").rglob(f"*{run.name}*")]
        if memory:
            yield f"shared memory is left: {memory}"
        if is_held(run / "lock") or (run / "lock.json").exists():
            yield f"the lock of {run.name} is still there"


def _tells(event: Event) -> bool:
    """A stall, or an end that is no success."""
    return event["type"] == "stall_declared" or (
        event["type"] == "attempt_exited" and event["code"] != 0
    )


def measure(case: Case) -> None:
    """Seconds from the fault to what followed it, over both nodes; the last one counts."""
    if case.struck_at is None:
        return
    found = logs(case.cwd)
    seen = [
        event["t"]
        for events in found.values()
        for event in events
        if event["t"] > case.struck_at and _tells(event)
    ]
    if seen:
        case.seconds["seen"] = min(seen) - case.struck_at
    for name, kind in (("launched again", "attempt_launched"), ("steps again", "first_step")):
        times = [
            [e["t"] for e in of_type(log, kind) if e["attempt"] == 2] for log in found.values()
        ]
        if not case.restarted and all(times):
            case.seconds[name] = max(each[0] for each in times) - case.struck_at
