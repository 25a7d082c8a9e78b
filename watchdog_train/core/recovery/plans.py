"""Builds the plan of an attempt: settings, checkpoint, and how that reaches the script. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    CheckpointFinding,
    CheckpointRef,
    Plan,
    RemedyUse,
    ResumeVia,
    Survey,
    Value,
    Why,
    WhyCode,
)
from watchdog_train.core.recovery.choice import Choice, name_of
from watchdog_train.core.recovery.remedies import Remedies
from watchdog_train.core.starting import launchers
from watchdog_train.core.starting.command_line import script_arguments, script_words

PLACEHOLDERS = ("{checkpoint}", "{ckpt}")
AUTO_RESUME = "auto"
"""As --resume-arg: the option that the script's own parser has shown in an attempt before."""
_SURE_NAMES = (
    "resume_from_checkpoint", "resume_from", "resume_path", "resume_ckpt", "resume_checkpoint",
    "resume", "restore_from", "restore", "load_checkpoint", "from_checkpoint",
    "auto_resume", "autoresume", "resume_training", "resume_from_latest", "resume_from_last",
    "resume_latest", "resume_last", "init_from",
)  # fmt: skip
"""Options that resume, the surest first."""
_OWN_RESUME = {name for name in _SURE_NAMES if "resume" in name} | {"auto_resume_from_checkpoints"}

_NO = ("null", "none", "false", "no", "off", "0", "never", "scratch")
"""Values of such an option that ask for no resume."""

_OWN_RESUME_OF = {"lightning": frozenset(("ckpt_path",))}
"""Options that resume in the scripts of one framework only: LightningCLI's `fit --ckpt_path`."""


class Resume(Value):
    argv: tuple[str, ...]
    via: ResumeVia
    why: Why
    template: str | None = None


def build(
    state: State,
    attempt: int,
    why: Why,
    uses: Sequence[RemedyUse],
    catalogue: Remedies,
    *,
    how: Resume | None = None,
    checkpoint: CheckpointFinding | None = None,
) -> Plan:
    """A plan in which the settings are spelled out, so that a person can repeat it."""
    how = how or Resume(argv=state.argv, via="none", why=why)
    env = launcher_environment(state, attempt)
    entries = []
    for use in uses:
        spec = catalogue[use.id]
        if not use.in_part:  # a variable reaches every rank
            env.update(spec.env)
        entry = spec.in_part if use.in_part else spec.in_process
        if entry is None:
            continue
        if spec.counts_attempts:
            earlier = sum(use.id in one.plan.settings for one in state.attempts)
            entry = {**entry, "times": earlier + 1}
        entries.append(entry if use.n is None else {**entry, "n": use.n})
    reference = checkpoint and msgspec.convert(checkpoint, CheckpointRef, from_attributes=True)
    return Plan(
        attempt=attempt,
        why=why,
        argv=how.argv,
        env=env,
        in_process=tuple(entries),
        checkpoint=reference,
        resume_via=how.via,
        remedies=tuple(uses),
        sole=checkpoint is not None
        and checkpoint.ordinal == 1
        and all(attempt.trainings <= 1 for attempt in state.attempts),
        resume_arg=how.template,
    )


def launcher_environment(state: State, attempt: int) -> dict[str, str]:
    task = state.task
    return launchers.environment(
        state.launcher,
        run_id=state.run_id,
        attempt=attempt,
        attempt_dir=f"{state.run_dir}/attempts/{attempt:04d}",
        node=task if task is not None and task.kind == "node" else None,
    )


def resume(state: State, choice: Choice, resume_arg: str | None, survey: Survey) -> Resume:
    """How a checkpoint is passed to the script, and why it is not."""
    argv, options, chosen = state.argv, state.resume_options, choice.chosen
    template = resume_arg if resume_arg != AUTO_RESUME else None
    if script_words(argv).receiver == "nobody":
        template = None
    if chosen is None:
        saved = survey.directories or any(one.saves for one in state.attempts)
        problem = survey.problem or survey.gone or ""
        nothing = Why("no-valid-checkpoint" if saved else "no-place", problem=problem)
        # It may save in a format known only to itself; an older run's checkpoint is not wanted.
        seen = survey.findings or survey.problem
        if template is None or names_path(template) or seen:
            return Resume(argv=argv, via="none", why=nothing.plus(Why("from-start")))
        return _by_arguments(
            argv, template, "", nothing.plus(Why("option-decides", option=template))
        )
    doubt = () if chosen.whole else (Why("maybe-incomplete"),)
    from_it = Why("resumes-from", path=name_of(chosen.path), step=chosen.step, because=doubt)
    newest = msgspec.structs.replace(from_it, code="newest-checkpoint")
    if template is None:
        hooked = chosen.format == "hf" or (
            chosen.format == "lightning" and chosen.ordinal is not None
        )
        own = own_resume_option(argv, chosen.format, flags=not hooked)
        if own is not None:
            why = newest.plus(Why("option-decides", option=own), *_put_back(chosen))
            return Resume(argv=argv, via="script", why=why)
        if hooked:
            return Resume(argv=argv, via="hook", why=from_it)
    found: tuple[Why, ...] = ()
    if resume_arg == AUTO_RESUME and (template := auto_option(argv, options)) is not None:
        found = (Why("parser-knows"),)
    asks = state.resume_way is not None and state.resume_way.code == "resume-by-api"
    if template is None and asks:
        return Resume(argv=argv, via="api", why=from_it)
    if template is None:
        why = newest.plus(Why("only-variable"), *_suggestion(state, resume_arg), *_put_back(chosen))
        return Resume(argv=argv, via="env", why=why)
    why = from_it.plus(Why("by-known-option", option=template)) if found else from_it
    if not names_path(template):
        why = newest.plus(Why("option-decides", option=template), *found, *_put_back(chosen))
    return _by_arguments(argv, template, chosen.path, why)


def names_path(template: str) -> bool:
    """Whether these arguments name a checkpoint; else the script finds its own."""
    return any(placeholder in template for placeholder in PLACEHOLDERS)


def _put_back(chosen: CheckpointFinding) -> tuple[Why, ...]:
    """For a script that only opens its own path: the kept copy has to be put there."""
    if chosen.copy_of is None:
        return ()
    return (Why("put-back", path=chosen.path, other=chosen.copy_of),)


def _by_arguments(argv: tuple[str, ...], template: str, path: str, why: Why) -> Resume:
    new_argv = with_arguments(argv, template, path)
    via: ResumeVia = "argv" if names_path(template) else "script"
    return Resume(argv=new_argv, via=via, why=why, template=template)


def sure_option(options: Sequence[str]) -> str | None:
    """The arguments that surely resume; None if that would be a guess."""
    plain = {
        re.split("[ =]", option.lstrip("-"))[0].replace("-", "_").replace(".", "_"): option
        for option in options
    }
    return next((plain[name] for name in _SURE_NAMES if name in plain), None)


def auto_option(argv: Sequence[str], options: Sequence[str]) -> str | None:
    """The arguments that `auto` adds: of the script's own parser, and only if they reach it.

    A flag that takes no path may mean anything.
    """
    reaches = script_words(argv).receiver == "script"
    return sure_option([each for each in options if " " in each or "=" in each] if reaches else ())


def way(
    state: State,
    resume_arg: str | None,
    options: Sequence[str],
    trainings: int | None,
    *,
    asks: bool = False,
) -> Why:
    """How a restart will resume, if known before it.

    `trainings` is None before the first step; `asks`: the script has called resume_path().
    """
    receiver, own = script_words(state.argv).receiver, own_resume_option(state.argv)
    if resume_arg not in (None, AUTO_RESUME) and receiver != "nobody":
        return Why("resume-adds", option=resume_arg or "")
    if own is not None and not trainings:
        return Why("option-decides", option=own)
    if trainings:
        return Why("resume-by-hook")
    if asks:
        return Why("resume-by-api")
    if resume_arg == AUTO_RESUME and (option := auto_option(state.argv, options)) is not None:
        return Why("resume-adds", option=option).plus(Why("parser-knows"))
    if trainings is None and receiver == "script":
        return Why("resume-later")
    return Why("resume-unknown").plus(*_suggestion(state, resume_arg, options))


def _suggestion(
    state: State, resume_arg: str | None, known: Sequence[str] | None = None
) -> tuple[Why, ...]:
    options = state.resume_options if known is None else known
    receiver = script_words(state.argv).receiver
    if receiver != "script":
        return (Why("not-through-shell" if receiver == "nobody" else "not-through-program"),)
    if not options:
        return (Why("no-option-known"),)
    option, auto = sure_option(options) or options[0], resume_arg == AUTO_RESUME
    code: WhyCode = "option-may-resume" if auto else "option-resumes"
    return (Why(code, names=tuple(options), option=option),)


def own_resume_option(
    argv: Sequence[str], format_name: str = "", *, flags: bool = True
) -> str | None:
    """The option by which the command itself asks to resume; None without one.

    Without `flags` an option counts only with a path or name.
    """
    known = _OWN_RESUME | _OWN_RESUME_OF.get(format_name, frozenset())
    words = script_arguments(argv)
    for word, after in zip(words, (*words[1:], "-"), strict=False):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals and not after.startswith("-"):
            value = after
        is_flag = value.lower() in ("", "true", "yes", "on", "1")
        if value.lower() in _NO or (equals and not value.strip()) or (is_flag and not flags):
            continue
        option = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
        if option in known and (word.startswith("-") or value):
            return name
        if option == "init_from" and value == "resume":
            return f"{name}={value}"
    return None


def with_arguments(argv: tuple[str, ...], template: str, path: str) -> tuple[str, ...]:
    """The command with the template's arguments; existing values of these options are replaced.

    Only the script's own arguments change. Nothing is added that would not reach the script.
    """
    place = script_words(argv)
    if place.receiver == "nobody":
        return argv
    words = shlex.split(template)
    for placeholder in PLACEHOLDERS:
        words = [word.replace(placeholder, path) for word in words]
    result = list(argv[place.begin : place.end])
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        values = []
        if word.startswith("-") and "=" not in word:
            while position + 1 < len(words) and not words[position + 1].startswith("-"):
                position += 1
                values.append(words[position])
        if not _put(result, word, values):
            rest += [word, *values]
        position += 1
    return (*argv[: place.begin], *result, *rest, *argv[place.end :])


def _put(argv: list[str], word: str, values: list[str]) -> bool:
    name, equals, _ = word.partition("=")
    if not equals and not word.startswith("-"):
        return False
    for index in range(len(argv)):
        if argv[index].startswith(f"{name}="):
            argv[index] = word if equals else f"{name}={' '.join(values)}" if values else name
            return True
        if argv[index] == name and word.startswith("-"):
            after = index + 1
            wanted = len(values) if not equals else 1
            while wanted and after < len(argv) and not argv[after].startswith("-"):
                after, wanted = after + 1, wanted - 1
            argv[index:after] = [word, *values]
            return True
    return False
