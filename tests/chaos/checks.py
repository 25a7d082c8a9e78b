"""What must be true at the end of every case, whatever the fault was."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tests.chaos import isolation
from tests.chaos.case import Case
from tests.support import MARKER, is_alive, of_type, run_wtrain
from watchdog_train.core.fold.evolve import replay
from watchdog_train.errors import WtrainError
from watchdog_train.store.lock import is_held
from watchdog_train.store.log_reading import read_events

RESTARTS_MOST = 5
_OUR_FRAME = re.compile(r'File ".*/watchdog_train/(?!client/)')


def after_run(case: Case, code: int, checksum: str) -> list[str]:
    """Problems of the run itself, while the bystanders still live."""
    problems = [*_exit(case, code), *_log(case, code), *_words(case)]
    problems += _training(case, code, checksum)
    for check in case.expected.also:
        problems += check()
    assert case.crowd is not None
    problems += case.crowd.harm()
    return problems


def after_all(case: Case, memory_before: frozenset[str]) -> list[str]:
    """Problems of what is left, when nobody of the case should be there any more."""
    problems = []
    if any("last word" in note for note in case.notes):
        _clean(case)
    left = _processes()
    if left:
        problems.append(f"processes are left: {left}")
    if isolation.is_isolated():
        names = sorted(shared_memory() - memory_before)
        if names:
            problems.append(f"shared memory is left: {names}")
    home = case.cwd / ".home"
    made = {str(path.relative_to(home)) for path in (home / "runtime").rglob("*")}
    spilled = _spilled(case)
    if spilled is not None and case.expected.full_for_good:  # the end of the log is only there
        kept = (spilled.parent, spilled, *spilled.iterdir())
        made -= {str(path.relative_to(home)) for path in kept}
        # Evidence that the run directory has refused has no other place, either.
        staging = spilled.parent.with_name(spilled.parent.name.replace("spill", "staging"))
        if any((staging / spilled.name).glob("full-*/SUMMARY.md")):
            made -= {str(path.relative_to(home)) for path in (staging, *staging.rglob("*"))}
    folders = sorted(made)
    if folders:
        problems.append(f"private folders are left: {folders[:12]}")
    entries = sorted(path.name for path in (home / "state").rglob("runs/*.json"))
    if entries:
        problems.append(f"still listed as live: {entries}")
    run_dir = case.run_dir
    if run_dir is not None:
        if is_held(run_dir / "lock"):
            problems.append("the lock of the run is still held")
        if (run_dir / "lock.json").exists():
            problems.append("the lock still names a holder")
    return problems


def has_a_bug(said: str) -> bool:
    """Whether a command says so, or shows a traceback of ours; the training's own is there, too."""
    return "a bug of" in said or _OUR_FRAME.search(said) is not None


def shared_memory() -> frozenset[str]:
    """Names in /dev/shm."""
    return frozenset(os.listdir("/dev/shm"))


def _spilled(case: Case) -> Path | None:
    """What did not fit on the disk of the run directory."""
    run_dir = case.run_dir
    name = run_dir.name if run_dir is not None else "none"
    return next((case.cwd / ".home" / "runtime").glob(f"wtrain-*-spill/{name}"), None)


def _clean(case: Case) -> None:
    """A supervisor that was killed after its last word leaves its folders to `wtrain clean`."""
    tops = (case.cwd / ".home" / "runtime", *Path("/dev/shm").glob("wtrain-*"))
    made = [path for top in tops for path in (top, *top.rglob("*"))]
    for path in made if isolation.is_isolated() else made[:0]:
        os.utime(path, (1, 1))  # what was made within a minute is left alone
    run_wtrain("clean", "--yes", cwd=case.cwd, env=case.env).check(0)


def _exit(case: Case, code: int) -> Iterable[str]:
    if code not in case.expected.codes:
        yield f"exit code {code}, expected one of {sorted(case.expected.codes)}"


def _log(case: Case, code: int) -> Iterable[str]:
    run_dir = case.run_dir
    if run_dir is None or (not case.events and case.expected.never_started):
        if not case.expected.never_started:
            yield "there is no run directory"
        return
    damaged = case.expected.log_damaged
    try:
        reading = read_events(
            run_dir / "events.jsonl", strict=not damaged, spill_dir=_spilled(case)
        )
    except WtrainError as error:
        yield f"the log cannot be read: {error.message} ({error.context})"
        return
    state = replay(reading.events)
    if damaged:
        return
    if not state.finished:
        yield f"the log does not end: state {state.state}"
    elif state.exit_code != code:
        yield f"the log says exit code {state.exit_code}, the process {code}"
    shown = case.status()
    if shown is None:
        yield "status shows nothing"
        return
    told = (state.exit_code, state.outcome, len(state.attempts), "finished")
    seen = (shown["exit_code"], shown["outcome"], shown["attempt"], shown["state"])
    if told != seen:
        yield f"status shows {seen}, its events give {told}"
    yield from _order(case)


def _order(case: Case) -> Iterable[str]:
    """No launch over a live tree; evidence before the signals of a hang."""
    living: dict[str | None, int] = {}
    collected = False
    for event in case.events:
        match event["type"]:
            case "attempt_launched":
                number, where = event["attempt"], event.get("host")
                if set(living.values()) - {number} or where in living:
                    yield f"attempt {number} was launched over {living}"
                living[where], collected = number, False
            case "tree_gone":
                living.pop(event.get("host"), None)
            case "evidence_collected":
                collected = True
            case "signalling" if event["why"]["code"] == "machine-failed":
                pass  # the attempt could not begin on another machine: no hang
            case "signalling" if event["sequence"] == "hang" and not collected:
                yield "a hang was signalled before its evidence was there"


def _words(case: Case) -> Iterable[str]:
    for running in case.supervisors:
        if has_a_bug(running.stderr):
            yield f"wtrain has a bug: {running.stderr[-1500:]}"


def _training(case: Case, code: int, checksum: str) -> Iterable[str]:
    lines = [line for line in case.journal() if line[2] == "0"]
    finished = [line for line in lines if line[3] == "finished"]
    if code == 0:
        one_more = bool(finished) and int(finished[-1][4]) == case.shape.steps + 1
        if one_more and _was_complete_and_unseen(case, finished[:-1]):
            finished = finished[:-1]  # a Trainer that is begun anew at its last step makes one more
        if not finished or int(finished[-1][4]) != case.shape.steps:
            yield "exit code 0, but the training did not reach its last step"
        elif finished[-1][5] != checksum:
            yield f"the result is {finished[-1][5]}, undisturbed it is {checksum}"
    yield from _resumes(case, lines)
    if any(line[3] == "twin" for line in case.journal()):
        yield "two attempts trained at the same time"
    begins = [line for line in lines if line[3] == "begin"]
    planned = 1 + (case.trouble != "none")
    if case.expected.harmless and len(begins) > planned:
        yield f"the training was started {len(begins)} times because of a harmless fault"
    if len(of_type(case.events, "attempt_launching")) > RESTARTS_MOST + planned:
        yield "more attempts than allowed"


def _was_complete_and_unseen(case: Case, finished: list[list[str]]) -> bool:
    """An attempt came to the last step, and nobody could see how it ended: it counts as failed."""
    unseen = {
        str(event["attempt"])
        for event in of_type(case.events, "attempt_exited")
        if event["how_known"] == "gone"
    }
    return any(int(line[4]) == case.shape.steps and line[0] in unseen for line in finished)


def _resumes(case: Case, lines: list[list[str]]) -> Iterable[str]:
    """Every attempt begins at the newest checkpoint that was whole by then."""
    saved: set[int] = set()
    spoiled = sorted(case.expected.spoiled, key=lambda one: one[1])
    for number, line in enumerate(lines):
        while spoiled and spoiled[0][1] <= number:
            saved.discard(spoiled.pop(0)[0])
        step = int(line[4])
        if line[3] == "saved":
            saved.add(step)
        elif line[3] == "begin" and number and step < max(saved, default=0):
            yield (
                f"attempt {line[0]} began at step {step}, "
                f"though the checkpoint of step {max(saved)} was whole"
            )


def _processes() -> dict[int, str]:
    """Whoever is there besides this case, in a world of its own; else who carries its marker."""
    found = {}
    marker = f"{MARKER}={os.environ.get(MARKER, 'none')}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid in (1, os.getpid()) or not is_alive(pid):
            continue
        try:
            if not isolation.is_isolated() and marker not in (entry / "environ").read_bytes():
                continue
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found[pid] = words[:160]
    return found
