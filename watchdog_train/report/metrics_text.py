"""The numbers of a run in the text format of Prometheus, version 0.0.4. Pure.

Names follow its conventions: a prefix, base units, `_total` for what only grows. A number that is
not known is left out: 0 would be a claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress
from watchdog_train.report.words import clean

Values = Iterable[tuple[Mapping[str, str], float | None]]
Rows = list[tuple[str, str, Values]]
"""Name, help, and the values by their labels."""
LABEL_CAP = 200


def metrics_text(state: State, observation: Observation | None, progress: RunProgress) -> str:
    """All of them, with their help.

    Args:
        state: what the event log says.
        observation: the newest look; None once the run is over.
        progress: of this moment.
    """
    run, lines = {"run": state.name, "run_id": state.run_id}, []
    for name, about, values in [*_of_run(state, progress), *_live(state, observation)]:
        # Prometheus refuses a file that has a series twice.
        known = {_labels({**run, **labels}): value for labels, value in values if value is not None}
        if known:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP wtrain_{name} {about}", f"# TYPE wtrain_{name} {kind}"]
            lines += [f"wtrain_{name}{labels} {_number(value)}" for labels, value in known.items()]
    return "\n".join(lines) + "\n"


def _of_run(state: State, progress: RunProgress) -> Rows:
    ends = Counter("stall" if one.stall_id is not None else "crash" for one in state.attempts[:-1])
    families = Counter(stall.family or "unknown" for stall in state.stalls if stall.why == "stall")
    attempt = state.attempt.attempt if state.attempt is not None else None
    of_families = [({"family": name}, families[name]) for name in sorted(families) or ["unknown"]]
    of_reasons = [({"reason": reason}, ends[reason]) for reason in ("stall", "crash")]
    warned = [({"kind": one.kind}, 1) for one in state.warned]
    return [
        ("run_state", "1 for the state the run is in.", [({"state": state.state}, 1)]),
        ("restarts_total", "Restarts, by why the attempt before had ended.", of_reasons),
        ("stalls_total", "Stalls, by family of cause.", of_families),
        ("warning", "1 for each warning that is not over.", warned),
        ("attempt", "Attempt that runs or ran last, from 1.", [({}, attempt)]),
        ("step", "Newest step of the job.", [({}, progress.step)]),
        ("steps", "Steps of the training in all.", [({}, progress.total_steps)]),
        ("steps_per_second", "Recent pace.", [({}, progress.steps_s)]),
        ("eta_seconds", "Until the last step, at the recent pace.", [({}, progress.eta_s)]),
        ("loss", "Newest loss that the training has reported.", [({}, progress.loss)]),
        ("suspected", "1 while a silence is looked into.", [({}, state.suspicion is not None)]),
        ("exit_code", "Of wtrain.", [({}, state.exit_code)]),
    ]


def _live(state: State, observation: Observation | None) -> Rows:
    taken = "updated_timestamp_seconds", "When these numbers were taken, Unix seconds."
    if observation is None:
        ended = [({"outcome": state.outcome or ""}, 1 if state.finished else None)]
        return [(*taken, [({}, state.updated_at)]), ("run_finished", "1 once it is over.", ended)]
    sample = observation.sample
    judged = [({"rank": str(one.member.rank or 0)}, slot) for one, slot in sample.judged]
    ages = [
        (rank, max(0.0, observation.now - slot.last_beat_ns / 1e9))
        for rank, slot in judged
        if slot.last_beat_ns
    ]
    roles = Counter(member.member.role for member in sample.members)
    by_role = [({"role": role}, count) for role, count in sorted(roles.items())]
    return [
        (*taken, [({}, observation.wall)]),
        ("heartbeat_age_seconds", "Since the newest beat of a rank.", ages),
        ("rank_step", "Newest step of a rank.", [(rank, slot.step) for rank, slot in judged]),
        ("processes", "Processes of the training, by role.", by_role),
    ]


def _labels(labels: Mapping[str, str]) -> str:
    """Each value is one line."""
    safe = {
        name: clean(value, LABEL_CAP).replace("\\", "\\\\").replace('"', '\\"')
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in safe.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))
