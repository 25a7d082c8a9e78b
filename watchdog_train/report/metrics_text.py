"""The numbers of a run in the text format of Prometheus, version 0.0.4. Pure.

Names follow its conventions: a prefix, base units, `_total` for what only grows. A number that is
not known is left out: 0 would be a claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress
from watchdog_train.report.words import clean

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float | None]]
Add = Callable[[str, str, Values], None]
LABEL_CAP = 200


def metrics_text(state: State, observation: Observation | None, progress: RunProgress) -> str:
    """All of them, with their help.

    Args:
        state: what the event log says.
        observation: the newest look; None once the run is over.
        progress: of this moment.
    """
    run = {"run": state.name, "run_id": state.run_id}
    lines: list[str] = []

    def add(name: str, about: str, values: Values) -> None:
        known = [(labels, value) for labels, value in values if value is not None]
        if known:
            lines.append(f"# HELP wtrain_{name} {about}")
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# TYPE wtrain_{name} {kind}")
            lines.extend(
                f"wtrain_{name}{_labels({**run, **labels})} {_number(value)}"
                for labels, value in known
            )

    attempt = state.attempt
    ended = state.attempts[:-1]
    reasons = Counter("stall" if each.stall_id is not None else "crash" for each in ended)
    families = Counter(stall.family or "unknown" for stall in state.stalls if stall.why == "stall")
    add("run_state", "1 for the state the run is in.", [({"state": state.state}, 1)])
    add(
        "restarts_total",
        "Restarts, by why the attempt before had ended.",
        [({"reason": reason}, reasons[reason]) for reason in ("stall", "crash")],
    )
    add(
        "stalls_total",
        "Stalls, by family of cause.",
        [({"family": name}, families[name]) for name in sorted(families) or ["unknown"]],
    )
    add(
        "warning",
        "1 for each warning that is not over.",
        _unique([({"kind": one.kind}, 1.0) for one in state.warned]),
    )
    table = (
        ("attempt", "Attempt that runs or ran last, from 1.", attempt.attempt if attempt else None),
        ("step", "Newest step of the job.", progress.step),
        ("steps", "Steps of the training in all.", progress.total_steps),
        ("steps_per_second", "Recent pace.", progress.steps_s),
        ("eta_seconds", "Until the last step, at the recent pace.", progress.eta_s),
        ("loss", "Newest loss that the training has reported.", progress.loss),
        ("suspected", "1 while a silence is looked into.", int(state.suspicion is not None)),
        ("exit_code", "Of wtrain.", state.exit_code),
        (
            "updated_timestamp_seconds",
            "When these numbers were taken, Unix seconds.",
            observation.wall if observation is not None else state.updated_at,
        ),
    )
    for name, about, value in table:
        add(name, about, [({}, value)])
    if observation is not None:
        _live(add, observation)
    if state.finished:
        add("run_finished", "1 once it is over.", [({"outcome": state.outcome or ""}, 1)])
    return "\n".join(lines) + "\n"


def _live(add: Add, observation: Observation) -> None:
    ages, steps = [], []
    for member, slot in observation.sample.judged:
        rank = {"rank": str(member.member.rank or 0)}
        if slot.last_beat_ns:
            ages.append((rank, max(0.0, observation.now - slot.last_beat_ns / 1e9)))
        steps.append((rank, slot.step))
    add("heartbeat_age_seconds", "Since the newest beat of a rank.", _unique(ages))
    add("rank_step", "Newest step of a rank.", _unique(steps))
    roles = Counter(member.member.role for member in observation.sample.members)
    add(
        "processes",
        "Processes of the training, by role.",
        [({"role": role}, float(count)) for role, count in sorted(roles.items())],
    )


def _unique(values: Values) -> Values:
    """Prometheus refuses a file that has a series twice."""
    found = {tuple(sorted(labels.items())): (labels, value) for labels, value in values}
    return list(found.values())


def _labels(labels: Labels) -> str:
    """Each value is one line."""
    safe = {
        name: clean(value, LABEL_CAP).replace("\\", "\\\\").replace('"', '\\"')
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in safe.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))
