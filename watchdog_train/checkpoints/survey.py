"""Scan the checkpoints of a run: which there are, newest first, and which are valid.

`python -m watchdog_train.checkpoints.survey request.json` is a child process of the supervisor, so
that a stuck file system can be given up on. Reads only; nothing is deleted, renamed or unpickled.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec.structs import asdict, replace

from watchdog_train.checkpoints import disk, torch_zip
from watchdog_train.checkpoints.find import DEPTH, find_candidates, places
from watchdog_train.checkpoints.formats import Candidate, Limits, Verdict, judged
from watchdog_train.checkpoints.order import newest_first
from watchdog_train.checkpoints.pickle_head import contents, counters, is_behind, step_of
from watchdog_train.checkpoints.records import Records
from watchdog_train.checkpoints.registry import OURS, Formats, all_formats
from watchdog_train.core import model
from watchdog_train.core.model.recovery import UNFINISHED
from watchdog_train.whole_files import answer_question, read_json

_CHECKED_CAP = 200
"""Checkpoints that are checked, newest first."""
_OPENED_CAP = 60
"""Files of torch.save whose dictionary is read for the order, newest first."""
_CLOCK_DOUBT_S = 5.0
"""A file server's clock may be this far behind the machine's."""
_NOTED_PLACES = 8
"""Number of directories of the newest saves that are scanned besides or instead of others."""
_UNFINISHED_FOLDER = re.compile(
    r"(?i)\d.*[._-](tmp|part|partial|temp|incomplete|saving|writing)$"
    r"|^\W*(tmp|temp|partial|incomplete|saving|writing)[._-].*\d"
)
"""With a number: a folder that is always called tmp may be where the checkpoints stay."""
NOTED = "unchanged since it was saved"


class SurveyRequest(model.Value):
    out: str = ""
    directories: tuple[str, ...] = ()
    """From the training's notes, or named by the user."""
    only_directories: bool = False
    """The user named them: scan no others."""
    saves: tuple[model.SaveRecord, ...] = ()
    running: model.TrainingReport | None = None
    """Its checkpoints go first: it was stopped in the middle."""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    level: model.ScanLevel = "quick"
    check: Literal["until-whole", "all"] = "until-whole"
    """Whether older ones than the newest valid one get the full level, too."""
    full_since: float | None = None
    """Unix seconds: checkpoints saved at or after it (around a kill) are always checked in full."""
    world_size: int | None = None
    settle_s: float = 2.0
    """A change this recent is checked twice, this far apart; 0 without writers."""
    began: float | None = None
    """Unix seconds of the run's own beginning, where it began with its training."""
    present: str = ""
    """The file that records what was there then."""
    kept: tuple[model.KeptCopy, ...] = ()
    """Copies of files that are overwritten in place, used if those are torn."""
    budget_s: float = 60.0
    """For complete reads of files."""


def survey(
    request: SurveyRequest,
    *,
    wait: Callable[[float], None] = time.sleep,
    formats: Formats | None = None,
) -> model.Survey:
    argv, cwd = ((), "") if request.only_directories else (request.argv, request.cwd)
    below = disk.named_directories(argv, cwd, request.directories)
    records = Records(request.saves, request.running, below)
    noted_only = request.level == "noted"
    # Hooks note no format of another package, and one that ends this process must not end the next.
    formats = formats or (OURS if noted_only else all_formats())
    candidates, found = find_candidates(
        _places(request, records),
        most_depth=0 if noted_only else DEPTH,
        noted=records.present[-_CHECKED_CAP:],
        formats=formats,
    )
    known = [one for one in map(records.known, candidates) if one.recorded or not noted_only]
    left = list(newest_first(_looked_into(known), formats))
    problem = found.problem
    if noted_only and not left:
        problem = problem or "no save that the hooks noted is there unchanged"
    if len(left) > _CHECKED_CAP:
        many = f"{len(left)} checkpoints: only the newest {_CHECKED_CAP} were looked at"
        problem, left = problem or many, left[:_CHECKED_CAP]
    moving = _still_changing(left, formats, request.settle_s, wait)
    deadline = time.monotonic() + request.budget_s
    present = read_json(Path(request.present), disk.Present, cap_bytes=disk.JSON_CAP_BYTES)
    copies = {os.path.realpath(one.path): one for one in request.kept}
    findings: list[model.CheckpointFinding] = []
    whole_found = False
    while left:
        candidate = left.pop(0)
        deep = request.level == "full" and (request.check == "all" or not whole_found)
        since, saved_at = request.full_since, candidate.mtime_ns / 1e9
        deep = deep or (since is not None and (saved_at >= since or bool(candidate.copy_of)))
        limits = Limits(
            level="full" if deep else "quick",
            time_left=lambda: deadline - time.monotonic(),
            world_size=request.world_size,
        )
        verdict = Verdict(whole=True, why=NOTED, how_checked="recorded")
        if not noted_only:
            verdict = _judge(candidate, limits, formats, moving.get(candidate.path))
        copy = copies.get(os.path.realpath(candidate.path))
        if copy is not None and not verdict.whole:
            left.insert(_newer_than(copy, left), _copy_of(candidate, copy))
        step, counted = candidate.step, dict[str, int]()
        first = bool(verdict.whole) and not whole_found
        if first and candidate.format == torch_zip.NAME and not noted_only:  # that reads no file
            counted = counters(candidate.path)
            step = step if step_of(counted) is None else step_of(counted)
            if records.counts_anew(candidate.copy_of or candidate.path):
                counted = {}
        whole_found = whole_found or first
        unsure = verdict.how_checked != "recorded"
        findings.append(
            model.CheckpointFinding(
                path=candidate.path,
                format=candidate.format,
                step=step,
                whole=verdict.whole,
                said=verdict.why,
                how_checked=verdict.how_checked,
                **asdict(candidate.whose),
                saved_at=saved_at if candidate.files else None,
                before_run=unsure and _is_older(candidate, request, present),
                counters=counted,
                copy_of=candidate.copy_of,
            )
        )
    has_saves = any(not save.is_part for save in request.saves)
    unsure = noted_only or found.failed or (found.cut and has_saves)
    return replace(
        found,
        findings=tuple(findings),
        problem=problem,
        warnings=tuple(formats.warnings),
        gone=_gone_words(findings, records),
        failed=not whole_found and unsure,
        beside_writers=request.settle_s > 0,
    )


def _places(request: SurveyRequest, records: Records) -> tuple[str, ...]:
    """The places to scan; of the noted saves alone their own directories, the newest first."""
    named = request.only_directories
    if request.level != "noted":
        saves, argv = ((), ()) if named else (records.present + request.saves, request.argv)
        found = places(request.directories, saves, argv, request.cwd)
        folders = [os.path.dirname(save.path) for save in saves[-_NOTED_PLACES:]]
        if records.present or any(map(os.path.lexists, folders)):
            return found
        # All saves are gone with their folders: they may have been moved beside these.
        return tuple(dict.fromkeys((*found, *map(os.path.dirname, folders))))
    only = places(request.directories, (), (), request.cwd)
    homes = dict.fromkeys(
        os.path.dirname(save.path) if os.path.basename(save.path) in save.files else save.path
        for save in sorted(records.present, key=lambda save: -save.t)
    )
    fit = (place for place in homes if not named or any(map(Path(place).is_relative_to, only)))
    return tuple(islice(fit, _NOTED_PLACES))


def _gone_words(findings: Sequence[model.CheckpointFinding], records: Records) -> str | None:
    """About gone saves newer than every usable checkpoint: a training removes old ones itself."""
    usable = [one.saved_at or 0 for one in findings if one.whole and not one.before_run]
    paths = [path for path, at in records.gone.items() if at > max(usable, default=0)]
    if not paths:
        return None
    count = "1 noted save is" if len(paths) == 1 else f"{len(paths)} noted saves are"
    return f"{count} gone, the newest {paths[-1]}; --checkpoints DIR names where to look"


def _looked_into(candidates: list[Candidate]) -> list[Candidate]:
    """With the contents of the newest files of torch.save, read without unpickling."""
    of_torch = (one for one in candidates if one.format == torch_zip.NAME)
    unknown = [one for one in of_torch if one.counters is None]
    unknown.sort(key=lambda one: (one.noted or (), one.mtime_ns), reverse=True)
    read = {one.path: contents(one.path) for one in unknown[:_OPENED_CAP]}

    found = []
    for one in candidates:
        counted, is_weights = read.get(one.path, (one.counters, False))
        step = step_of(counted or {})
        step = one.step if step is None else step
        found.append(replace(one, counters=counted, is_weights=is_weights, step=step))
    return found


def _is_older(candidate: Candidate, request: SurveyRequest, present: disk.Present | None) -> bool:
    """Whether it is from before the run; by the clock only if the beginning was not recorded."""
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
    """Which recently written ones change during the scan, by path, with the reason."""
    recent = [item for item in candidates if item.mtime_ns / 1e9 > time.time() - settle_s]
    if settle_s <= 0 or not recent:
        return {}
    wait(settle_s)
    changing = {}
    for candidate in recent:
        after = disk.sizes_of(candidate.path)
        changed = [name for name, size in candidate.files.items() if after.get(name) != size]
        if os.path.isdir(candidate.path) and formats.by_name[candidate.format].owns_directory:
            changed += sorted(set(after) - set(candidate.files))
        if changed:
            changing[candidate.path] = f"still being written: {changed[0]} changed while we looked"
    return changing


def _judge(candidate: Candidate, limits: Limits, formats: Formats, moving: str | None) -> Verdict:
    check = partial(formats.by_name[candidate.format].check, candidate, limits)
    if candidate.copy_of is not None:  # it was copied as the save hook had noted it
        gone = Verdict(whole=False, why="the kept copy is gone")
        verdict = judged(check) if candidate.files else gone
        why = f"the copy that was kept of {candidate.copy_of} when its save had ended"
        whole = verdict.whole is not False
        return Verdict(whole=whole, why=f"{why}; {verdict.why}", how_checked="recorded")
    if moving is not None:
        return Verdict(whole=False, why=moving)
    folder, name = os.path.split(candidate.path)
    if UNFINISHED.search(name):
        return Verdict(whole=False, why="by its name a save that has not finished")
    if _UNFINISHED_FOLDER.search(os.path.basename(folder)):
        # Valid in itself; whether other files were to come is not known.
        return Verdict(whole=None, why="its folder has the name of a save that has not finished")
    # Also of a recorded one: after a power loss a file of the right size may hold zeros.
    verdict = judged(check)
    if candidate.recorded and verdict.whole is not False:
        deep = verdict.whole and verdict.how_checked == "full"
        why = f"{NOTED}; {verdict.why}" if deep else NOTED
        return Verdict(whole=True, why=why, how_checked="recorded")
    if candidate.recorded is False:
        why = f"{verdict.why} (changed since the save hook noted it)"
        return replace(verdict, why=why)
    return verdict


def _newer_than(copy: model.KeptCopy, others: Sequence[Candidate]) -> int:
    """How many of these go before the copy: up to the first that is further by its own count.

    A best.pt may be torn hours after its copy was made, with a last.pt of minutes ago beside it.
    """
    counted = counters(copy.copy)
    newer = (
        number
        for number, other in enumerate(others, start=1)
        if other.mtime_ns / 1e9 > copy.saved_at and is_behind(counted, counters(other.path))
    )
    return next(newer, 0)


def _copy_of(torn: Candidate, copy: model.KeptCopy) -> Candidate:
    """The copy of the last valid version of a file that has been torn since."""
    return replace(
        torn,
        path=copy.copy,
        format=copy.format,
        step=copy.step,
        files=disk.sizes_of(copy.copy),
        copy_of=torn.path,
    )


if __name__ == "__main__":
    answer_question(SurveyRequest, survey)
