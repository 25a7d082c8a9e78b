"""Look at the checkpoints of a run: which there are, newest first, and which are whole.

`python -m watchdog_train.checkpoints.survey request.json` is a child process of the supervisor, so
that a stuck file system can be given up on. Reads only; nothing is deleted, renamed or unpickled.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.checkpoints.disk import (
    JSON_CAP_BYTES,
    Present,
    named_directories,
    sizes_of,
)
from watchdog_train.checkpoints.find import DEPTH, find_candidates, places
from watchdog_train.checkpoints.formats import Candidate, Limits, Verdict, judged
from watchdog_train.checkpoints.pickle_head import contents, counters, is_behind, step_of
from watchdog_train.checkpoints.records import Records, Running
from watchdog_train.checkpoints.registry import OURS, Formats, all_formats, newest_first
from watchdog_train.checkpoints.torch_zip import NAME as TORCH_NAME
from watchdog_train.core.model import (
    CheckpointFinding,
    KeptCopy,
    SaveRecord,
    ScanLevel,
    Survey,
    Value,
    Whose,
)
from watchdog_train.core.model.recovery import UNFINISHED
from watchdog_train.whole_files import answer_question, read_json

_CHECKED_CAP = 200
"""Checkpoints that are looked at, newest first."""
_OPENED_CAP = 60
"""Files whose dictionary is read for the order."""
_CLOCK_DOUBT_S = 5.0
"""A file server's clock may be this much behind ours."""
_SAME_MOMENT_S = 2.0
_NOTED_PLACES = 8
"""Of the newest saves: how many directories are listed where only these may be used."""
_UNFINISHED_FOLDER = re.compile(
    r"(?i)\d.*[._-](tmp|part|partial|temp|incomplete|saving|writing)$"
    r"|^\W*(tmp|temp|partial|incomplete|saving|writing)[._-].*\d"
)
"""With a number: a folder that is always called tmp may be where the checkpoints stay."""
NOTED = "unchanged since it was saved"


class SurveyRequest(Value):
    """What to survey."""

    out: str = ""
    """Where survey.json goes."""
    directories: tuple[str, ...] = ()
    """From the notes of the training, or named by the user."""
    only_directories: bool = False
    """The user named them: look nowhere else."""
    saves: tuple[SaveRecord, ...] = ()
    running: Running | None = None
    """Its checkpoints go first: it was stopped in the middle."""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    level: ScanLevel = "quick"
    check: Literal["until-whole", "all"] = "until-whole"
    """Whether older ones than the newest valid one get the full level, too."""
    full_since: float | None = None
    """Unix seconds: checkpoints saved at or after it (around a kill) are always checked in full."""
    world_size: int | None = None
    settle_s: float = _SAME_MOMENT_S
    """What changed this recently is looked at twice, this far apart; 0 when nobody writes."""
    began: float | None = None
    """Unix seconds of the run's own beginning, where it began with its training."""
    present: str = ""
    """The file that says what was there then."""
    kept: tuple[KeptCopy, ...] = ()
    """Copies of files that are overwritten in place, for where those are torn."""
    budget_s: float = 60.0
    """For reading whole files."""


def survey(
    request: SurveyRequest,
    *,
    wait: Callable[[float], None] = time.sleep,
    formats: Formats | None = None,
) -> Survey:
    """Find, order and check the checkpoints of a run."""
    saves = tuple(save for save in request.saves if not save.is_part)
    argv, cwd = ((), "") if request.only_directories else (request.argv, request.cwd)
    below = named_directories(argv, cwd, request.directories)
    records = Records(request.saves, request.running, below)
    noted_only = request.level == "noted"
    # Hooks note no format of another package, and one that ends this process must not end the next.
    formats = formats or (OURS if noted_only else all_formats())
    found = find_candidates(
        _places(request, records),
        most_depth=0 if noted_only else DEPTH,
        noted=records.present[-_CHECKED_CAP:],
        formats=formats,
    )
    candidates = [
        records.known(item) for item in found.candidates if not noted_only or records.covers(item)
    ]
    ordered = newest_first(_looked_into(candidates), formats)
    problem = found.problem
    if noted_only and not ordered:
        problem = problem or "no save that the hooks noted is there unchanged"
    if len(ordered) > _CHECKED_CAP:
        many = f"{len(ordered)} checkpoints: only the newest {_CHECKED_CAP} were looked at"
        problem = problem or many
        ordered = ordered[:_CHECKED_CAP]
    moving = _still_changing(ordered, formats, request.settle_s, wait)
    deadline = time.monotonic() + request.budget_s
    findings: list[CheckpointFinding] = []
    whole_found = False
    present = read_json(Path(request.present), Present, cap_bytes=JSON_CAP_BYTES)
    copies = {os.path.realpath(one.path): one for one in request.kept}
    left: list[tuple[Candidate, CheckpointFinding | None]] = [(item, None) for item in ordered]
    while left:
        candidate, torn = left.pop(0)
        deep = request.level == "full" and (request.check == "all" or not whole_found)
        deep = deep or (
            request.full_since is not None and candidate.mtime_ns / 1e9 >= request.full_since
        )
        limits = Limits(
            level="full" if deep else "quick",
            time_left=lambda: deadline - time.monotonic(),
            world_size=request.world_size,
        )
        copy = copies.get(os.path.realpath(candidate.path))
        if copy is not None and torn is not None:
            finding = _finding_of_copy(copy, torn, limits, formats)
        else:
            verdict = (
                Verdict(whole=True, why=NOTED, how_checked="recorded")
                if noted_only
                else _judge(candidate, limits, formats, records, moving.get(candidate.path))
            )
            finding = _finding(candidate, verdict, records.whose(candidate))
            if verdict.how_checked != "recorded" and _is_older(candidate, request, present):
                finding = msgspec.structs.replace(finding, before_run=True)
            if copy is not None and not verdict.whole:
                left.insert(_newer_than(copy, left), (candidate, finding))
        # Level `noted` reads no file.
        if finding.whole and not whole_found and not noted_only:
            finding = _with_counters(finding, records)
        whole_found = whole_found or finding.whole is True
        findings.append(finding)
    return Survey(
        findings=tuple(findings),
        directories=found.directories,
        problem=problem,
        warnings=tuple(formats.warnings),
        gone=_gone_words(findings, records),
        cut=found.cut,
        failed=not whole_found and (noted_only or found.broken or (found.cut and bool(saves))),
        beside_writers=request.settle_s > 0,
    )


def _places(request: SurveyRequest, records: Records) -> tuple[str, ...]:
    """Where to look; of the noted saves alone in their own directories, the newest first."""
    named = request.only_directories
    only = places(request.directories, (), (), request.cwd)
    if request.level != "noted":
        saves, argv = ((), ()) if named else (records.present + request.saves, request.argv)
        found = places(request.directories, saves, argv, request.cwd)
        folders = [os.path.dirname(save.path) for save in saves[-_NOTED_PLACES:]]
        if records.present or any(map(os.path.lexists, folders)):
            return found
        # Moved one by one into another folder.
        return tuple(dict.fromkeys((*found, *map(os.path.dirname, folders))))
    newest = sorted(records.present, key=lambda save: -save.t)
    homes = dict.fromkeys(
        os.path.dirname(save.path) if os.path.basename(save.path) in save.files else save.path
        for save in newest
    )
    fit = (place for place in homes if not named or any(map(Path(place).is_relative_to, only)))
    return tuple(islice(fit, _NOTED_PLACES))


def _gone_words(findings: Sequence[CheckpointFinding], records: Records) -> str | None:
    """Of those that are newer than what can be used: a training removes old ones itself."""
    usable = [one.saved_at or 0 for one in findings if one.whole and not one.before_run]
    paths = [path for path, at in records.gone.items() if at > max(usable, default=0)]
    count = "1 noted save is" if len(paths) == 1 else f"{len(paths)} noted saves are"
    gone = f"gone, the newest {paths[-1]}" if paths else ""
    return f"{count} {gone}; --checkpoints DIR names where to look" if paths else None


def _looked_into(candidates: list[Candidate]) -> list[Candidate]:
    """With what the newest files of torch.save hold, which is read without unpickling."""
    unknown = [one for one in candidates if one.format == TORCH_NAME and one.counters is None]
    unknown.sort(key=lambda one: (one.noted or (), one.mtime_ns), reverse=True)
    read = {one.path: contents(one.path) for one in unknown[:_OPENED_CAP]}
    return [
        msgspec.structs.replace(
            one,
            counters=read[one.path][0],
            is_weights=read[one.path][1],
            step=one.step if (step := step_of(read[one.path][0])) is None else step,
        )
        if one.path in read
        else one
        for one in candidates
    ]


def _is_older(candidate: Candidate, request: SurveyRequest, present: Present | None) -> bool:
    """Whether it is from before the run; by the clock only where nobody looked at its beginning."""
    if request.began is None or not candidate.files:
        return False
    held = present.held(candidate.path, candidate.files) if present is not None else None
    if held is not None:
        return held
    # A copy that keeps its times is as new as its entry in the file system.
    single = os.path.basename(candidate.path) in candidate.files
    folder = os.path.dirname(candidate.path) if single else candidate.path
    with suppress(OSError):
        changed = max(os.stat(os.path.join(folder, name)).st_ctime for name in candidate.files)
        return changed < request.began - _CLOCK_DOUBT_S
    return False


def _still_changing(
    candidates: Sequence[Candidate],
    formats: Formats,
    settle_s: float,
    wait: Callable[[float], None],
) -> dict[str, str]:
    """Which of the recently written ones change while we look, by path, with the words for it."""
    if settle_s <= 0:
        return {}
    recent = [item for item in candidates if item.mtime_ns / 1e9 > time.time() - settle_s]
    if not recent:
        return {}
    wait(settle_s)
    changing = {}
    for candidate in recent:
        after = sizes_of(candidate.path)
        changed = [name for name, size in candidate.files.items() if after.get(name) != size]
        if os.path.isdir(candidate.path) and formats.by_name[candidate.format].owns_directory:
            changed += sorted(set(after) - set(candidate.files))
        if changed:
            changing[candidate.path] = f"still being written: {changed[0]} changed while we looked"
    return changing


def _judge(
    candidate: Candidate, limits: Limits, formats: Formats, records: Records, moving: str | None
) -> Verdict:
    if moving is not None:
        return Verdict(whole=False, why=moving)
    if UNFINISHED.search(os.path.basename(candidate.path)):
        return Verdict(whole=False, why="by its name a save that has not finished")
    recorded = records.covers(candidate)
    if _UNFINISHED_FOLDER.search(os.path.basename(os.path.dirname(candidate.path))):
        # Whole in itself; whether other files were to come is not known.
        return Verdict(whole=None, why="its folder has the name of a save that has not finished")
    # Also of a recorded one: after a power loss a file of the right size may hold zeros.
    verdict = _check(candidate, limits, formats)
    if recorded and verdict.whole is not False:
        deep = verdict.whole and verdict.how_checked == "full"
        why = f"{NOTED}; {verdict.why}" if deep else NOTED
        return Verdict(whole=True, why=why, how_checked="recorded")
    record = records.of(candidate)
    if record is not None and record.files and not recorded:
        return msgspec.structs.replace(
            verdict, why=f"{verdict.why} (changed since the save hook noted it)"
        )
    return verdict


def _check(candidate: Candidate, limits: Limits, formats: Formats) -> Verdict:
    return judged(partial(formats.by_name[candidate.format].check, candidate, limits))


def _finding(candidate: Candidate, verdict: Verdict, whose: Whose) -> CheckpointFinding:
    return CheckpointFinding(
        path=candidate.path,
        format=candidate.format,
        step=candidate.step,
        whole=verdict.whole,
        said=verdict.why,
        how_checked=verdict.how_checked,
        **msgspec.structs.asdict(whose),
        saved_at=candidate.mtime_ns / 1e9 if candidate.files else None,
    )


def _with_counters(finding: CheckpointFinding, records: Records) -> CheckpointFinding:
    if finding.format != TORCH_NAME:
        return finding
    counted = counters(finding.path)
    step = step_of(counted)
    return msgspec.structs.replace(
        finding,
        step=finding.step if step is None else step,
        counters={} if records.counts_anew(finding.copy_of or finding.path) else counted,
    )


def _newer_than(copy: KeptCopy, others: Sequence[tuple[Candidate, object]]) -> int:
    """How many of these go before the copy: up to the first that is further by its own count.

    A best.pt may be torn hours after its copy was made, with a last.pt of minutes ago beside it.
    """
    counted = counters(copy.copy)
    newer = (
        number
        for number, (other, _) in enumerate(others, start=1)
        if other.mtime_ns / 1e9 > copy.saved_at and is_behind(counted, counters(other.path))
    )
    return next(newer, 0)


def _finding_of_copy(
    copy: KeptCopy, torn: CheckpointFinding, limits: Limits, formats: Formats
) -> CheckpointFinding:
    """The copy of the last valid version of a file that has been torn since."""
    sizes = sizes_of(copy.copy)
    candidate = Candidate(
        path=copy.copy, format=copy.format, step=copy.step, epoch=None, files=sizes
    )
    verdict = Verdict(whole=False, why="the kept copy is gone")
    if sizes:
        verdict = _check(candidate, limits, formats)
    return msgspec.structs.replace(
        torn,
        path=copy.copy,
        format=copy.format,
        step=copy.step,
        whole=verdict.whole is not False,  # it was copied as the save hook had noted it
        said=f"the copy that was kept of {copy.path} when its save had ended; {verdict.why}",
        how_checked="recorded",
        saved_at=copy.saved_at,
        counters={},
        copy_of=torn.path,
    )


if __name__ == "__main__":
    answer_question(SurveyRequest, survey)
