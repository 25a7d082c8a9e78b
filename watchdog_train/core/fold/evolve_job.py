"""How the events of a job with several machines change the state of one run. Pure, total."""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import Crew, Machine, State
from watchdog_train.core.model import Member

_replace = msgspec.structs.replace


def change(state: State, event: e.AnyEvent) -> State:
    """The state after a plan or an event about other machines."""
    crew = state.crew
    match event:
        case e.PlanMade():
            return _replace(state, next_plan=event.plan)
        case e.TaskJoined():
            crew = Crew(task=event.task)
            return _replace(state, crew=crew, host=event.host or state.host)
        case e.MachineLost():
            return _lost(state, event)
        case e.Ordered() if crew is not None:
            return _replace(state, crew=_replace(crew, epoch=event.epoch, done=event.number))
        case e.MachineHeard() if crew is not None:
            others = tuple(one for one in crew.machines if one.host != event.host)
            heard = Machine(
                host=event.host,
                hostname=event.hostname,
                place=event.place,
                run_dir=event.run_dir,
                agent=event.agent,
            )
            silent = tuple(one for one in crew.silent if one[0] != event.host)
            crew = _replace(crew, machines=(*others, heard), silent=silent)
            return _replace(state, crew=crew)
        case e.MachineSilent() if crew is not None:
            silent = (*crew.silent, (event.host, event.since))
            return _replace(state, crew=_replace(crew, silent=silent))
        case e.Progress() if crew is not None:
            return _replace(state, crew=_replace(crew, ranks=_ranks(crew, state.members)))
        case _:
            return state


def _ranks(crew: Crew, members: tuple[Member, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By machine; of one that shows none now they stay as they were seen last."""
    found: dict[str, set[int]] = {}
    for member in members:
        if member.role == "rank" and member.rank is not None:
            found.setdefault(member.host, set()).add(member.rank)
    return tuple(({**dict(crew.ranks), **{k: tuple(sorted(v)) for k, v in found.items()}}).items())


def _lost(state: State, event: e.MachineLost) -> State:
    state = records.trees(state, event.host, lost=True)
    tree = state.tree(event.host)
    if tree is not None and not tree.ended:
        ended = {"ended": True, "ended_mono": event.mono, "how_known": "gone"}
        state = records.trees(state, event.host, **ended)
    for stall in state.stalls:
        if stall.collecting and records.has_all(state, stall.id):
            state = records.stall(state, stall.id, collecting=False, collected=True)
    return state
