"""What happened when, in few lines: the play on the left side, what wtrain did about it beside."""

from __future__ import annotations

from collections.abc import Iterator

from tests.night.play import Night
from tests.support import Event, sentence


def table(night: Night) -> str:
    """Markdown: time since the evening, who, what."""
    rows = [(at, "the night", words) for at, words in night.told]
    rows += [(event["t"], "wtrain", words) for event, words in _told(night.events)]
    lines = ["| time | who | what |", "|---|---|---|"]
    for at, who, words in sorted(rows, key=lambda row: row[0]):
        since_s = max(0.0, at - night.began)
        lines.append(f"| {since_s // 60:.0f}:{since_s % 60:02.0f} | {who} | {words} |")
    return "\n".join(lines)


def _told(events: list[Event]) -> Iterator[tuple[Event, str]]:
    for event in events:
        words = _words(event)
        if words:
            yield event, words


def _words(event: Event) -> str | None:
    match event["type"]:
        case "first_step":
            return f"attempt {event['attempt']} trains at step {event['step']}"
        case "stall_declared":
            return f"stall {event['stall_id']} declared after {event['age_s']:.0f} s of silence"
        case "stall_explained":
            found = event["explanation"]
            who = found["root"] and found["root"]["who"]
            cause = found["because"]
            whose = "" if not who or who["role"] == "rank" else f"{who['role']} of "
            where = f", {whose}rank {who['rank']}" if who else ""
            sure = f"{cause['family']}, {cause['certainty']}" if cause else found["kind"]
            return f"{event['stall_id']}: {sure}{where}"
        case "checkpoint_rejected":
            return f"passed over: {event['path'].rpartition('/')[2]}: {sentence(event['why'])[:80]}"
        case "attempt_launching" if event["attempt"] > 1:
            plan = event["plan"]
            step = (plan["checkpoint"] or {}).get("step")
            names = ", ".join(use["id"] for use in plan["remedies"]) or "no setting changed"
            return f"attempt {event['attempt']} started from step {step} ({names})"
        case "adopted":
            return f"adopted in place of pid {event['previous_pid']}"
        case "warned":
            return (
                f"warned: {_without_path(sentence(event['ahead']['why']), event['ahead']['about'])}"
            )
        case "noticed":
            return f"noticed: {sentence(event['why'])[:120]}"
        case "run_finished":
            return f"{event['outcome']}, exit code {event['exit_code']}"
    return None


def _without_path(words: str, path: str) -> str:
    return words.replace(path, "the disk")[:120]
