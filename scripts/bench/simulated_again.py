"""Programs that hang at the same place after every restart: the rules under a clock of their own.

Real runs would take hours. The rules, their settings and the events are the product's own; the
silence, the wait that a look finds, and the clock are simulated.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.actions import Observation, Record, StartLook, TreeSight
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Patience, PatienceRow, Place, Silence, together
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.policy import Policy
from watchdog_train.core.replay import launched, unseen
from watchdog_train.core.suspect import watch
from watchdog_train.explain.patience import limit_s

ATTEMPTS = 6
SUSPECTED_S = 20.0
LINE = Place(function="fetch", file="train.py", line=9)
PROGRAMS: dict[str, tuple[PatienceRow, x.Doing]] = {
    "a deadlock": ("proven", w.MutexWait(address=1)),
    "a FIFO that nobody opens": ("fifo", w.FileWait(call="open", kind="fifo")),
    "a lock whose releaser is idle": ("nobody-left", x.PythonLockWait()),
    "a wait that is not known": ("unknown", w.UnknownWait(why="call")),
    "a server that never answers": ("network", w.TcpWait(call="read", address="10.0.0.1:80")),
    "a file that never comes": ("poll", w.SleepWait(repeats=True)),
}


def delays(name: str, policy: Policy) -> list[float]:
    """From the last progress of each attempt to its stall."""
    row, doing = PROGRAMS[name]
    root = x.Standstill(who=x.Who(pid=1, rank=0), doing=doing, own=LINE)
    limit = limit_s(row, Silence(), policy.patience)
    answer = unseen(Patience(row=row, limit_s=limit, root=root, line=LINE))
    state, now, found = State(state="running"), 0.0, []
    for number in range(1, ATTEMPTS + 1):
        attempt = launched(number, now)
        state = msgspec.structs.replace(state, state="running", attempts=(attempt,))
        began, look = now, None
        now += SUSPECTED_S
        while state.state == "running":
            silent_s = now - began
            verdict = Verdict(
                kind="suspect", phase="train", ranks=(0,), age_s=silent_s, quiet_s=silent_s,
                steady=True, progress_at=began,
            )  # fmt: skip
            sample = together((), at=now)
            sight = TreeSight(sample=sample, look=look)
            seen = Observation(
                now=now, wall=now, sample=sample, verdict=verdict, trees=(sight,), bundles=0
            )
            match watch(seen, state, policy):
                case Record(events=events):
                    look = None
                    for event in events:
                        stamped = msgspec.structs.replace(event, t=now, mono=now, attempt=number)
                        state = evolve(state, stamped)
                case StartLook():
                    look = answer
                case _:
                    now += 1.0
        found.append(now - began)
    return found


def table(policy: Policy) -> tuple[list[str], bool]:
    """A line for each program, and whether all stay within the setting."""
    limits = policy.patience
    without = msgspec.structs.replace(limits, again_s=0.0, again_later_s=0.0, again_most_s=0.0)
    plain = msgspec.structs.replace(policy, patience=without)
    lines, total_s, within = [], 0.0, True
    for name in PROGRAMS:
        found, before = delays(name, policy), delays(name, plain)
        lost_s = sum(found) - sum(before)
        total_s += lost_s
        within = within and lost_s <= limits.again_most_s
        each = ", ".join(f"{one:.0f}" for one in found)
        lines.append(f"{name:30} stalls at {each} s; lost {lost_s / 60:.1f} min")
    lines.append(
        f"lost in all: {total_s / 60:.1f} min; at most {limits.again_most_s / 60:.0f} min for one "
        f"(patience.again_most_s)"
    )
    return lines, within
