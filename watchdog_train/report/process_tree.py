"""The recorded processes of a run, drawn as a tree for the status screen. Pure."""

from __future__ import annotations

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Member
from watchdog_train.report import words
from watchdog_train.report.live import Live
from watchdog_train.report.words import clean


def process_tree(state: State, live: Live, *, limit: int) -> list[str]:
    """Recorded members as a tree; a dead parent's children hang where they can be seen."""
    if state.finished:
        return []
    here = state.hosts_here
    members = [
        member
        for member in state.members
        if not live.here or (member.host in here and member.pid in live.states)
    ]
    by_parent: dict[tuple[str, int], list[Member]] = {}
    pids = {(member.host, member.pid) for member in members}
    for member in members:
        parent = (member.host, member.ppid)
        known = parent in pids and member.ppid != member.pid
        by_parent.setdefault(parent if known else ("", 0), []).append(member)
    lines: list[str] = []
    drawn: set[tuple[str, int]] = set()

    def draw(member: Member, lead: str, branch: str) -> None:
        # The bound also keeps a chain of a thousand parents from exhausting the stack.
        who = (member.host, member.pid)
        if who in drawn or len(lines) > limit:
            return
        drawn.add(who)
        lines.append(f"{lead}{branch}{_process(member, live)}")
        children = by_parent.get(who, [])
        below = lead + {"": "", "├─": "│ ", "└─": "  "}[branch]
        for i, child in enumerate(children):
            draw(child, below, "└─" if i == len(children) - 1 else "├─")

    roots = by_parent.get(("", 0), [])
    for member in [*roots, *members]:
        draw(member, "", "")
    if len(members) > limit:
        lines = [*lines[: limit - 1], f"… {len(members) - limit + 1} more"]
    return lines


def _process(member: Member, live: Live) -> str:
    role = {"rank": f"rank {member.rank}", "worker": f"worker {member.worker}"}.get(
        member.role, member.role
    )
    if member.rank is None and member.role == "rank":
        role = "rank"
    if member.worker is None and member.role == "worker":
        role = "worker"
    if member.role == "worker" and member.rank is not None:
        role += f" of rank {member.rank}"
    name = clean(member.name, 32) if member.name != member.role else ""
    state = words.state_word(live.states.get(member.pid)) if live.here else "state unknown"
    shown = f"{member.pid} {role}" if role != "other" else f"{member.pid}"
    return ", ".join(part for part in (f"{shown} {name}".strip(), state) if part)
