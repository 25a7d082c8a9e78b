"""The in-process part of an attempt's plan: what it asks for, and whether it took.

It must change only what the plan names, and where a change would not be transparent it must
leave things as they are and say why. Its parts are in the modules of what they change:
loader_settings, training_settings, trainer_settings, locks.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases, slot

UNUSED = {
    "no-eval": "only the Trainers of transformers and Lightning can be told not to evaluate",
    "eval-batch": "no evaluation with a larger batch has begun so far",
    "shorter-sequences": "no DataLoader has given a batch with input_ids",
    "subset": "no DataLoader has been made",
}
_wanted = None  # type: dict | None


def wanted():
    """The settings of the plan by id: (bit, parameters)."""
    global _wanted
    if _wanted is None:
        _wanted = {}
        try:
            if slot.supervised and slot.settings_json:
                import json

                for bit, entry in enumerate(json.loads(slot.settings_json)[:64]):
                    _wanted[str(entry["id"])] = (bit, entry)
        except Exception as error:
            notes.note("the settings of the plan cannot be read: " + type(error).__name__)
    return _wanted


def parameters(identifier):
    """The plan's parameters of a setting, None when it does not ask for it."""
    found = wanted().get(identifier)
    return None if found is None else found[1]


def report(identifier, took, why):
    found = wanted().get(identifier)
    if found is not None:
        notes.setting(identifier, found[0], took, why)


def attempted(identifier, act, *arguments):
    """Apply a setting if the plan asks for it, and report the result of `act`: (took, why)."""
    entry = parameters(identifier)
    if entry is None:
        return
    try:
        took, why = act(entry, *arguments)
    except Exception as error:
        took, why = False, type(error).__name__ + ": " + str(error)[:200]
    report(identifier, took, why)


def bind(function, args, kwargs):
    """The arguments of a call by name; raises TypeError where they do not fit."""
    import inspect

    return inspect.signature(function).bind(*args, **kwargs)


def changing(identifier, original, change):
    """`original`, whose arguments `change(entry, bound)`: (took, why) changes if the plan asks."""
    entry = parameters(identifier)
    if entry is None:
        return original

    def wrapper(*args, **kwargs):
        try:
            bound = bind(original, args, kwargs)
            took, why = change(entry, bound)
            if why:
                report(identifier, took, why)
            args, kwargs = bound.args, bound.kwargs
        except Exception as error:
            report(identifier, False, type(error).__name__ + ": " + str(error)[:200])
        return original(*args, **kwargs)

    return phases.like(wrapper, original)


def with_changes(original, change, what):
    """`original`, whose bound arguments `change` changes; an error leaves them, with a note."""

    def wrapper(*args, **kwargs):
        try:
            bound = bind(original, args, kwargs)
            change(bound.arguments)
            args, kwargs = bound.args, bound.kwargs
        except Exception as error:
            notes.note(what + " was left as it is: " + type(error).__name__)
        return original(*args, **kwargs)

    return phases.like(wrapper, original)


def check_environment():
    """Whether variables of the plan have arrived: a wrapper or the script may have set others."""
    for identifier, (_, entry) in wanted().items():
        expected = entry.get("env")
        if not isinstance(expected, dict):
            continue
        wrong = [name for name, value in expected.items() if os.environ.get(name) != value]
        if wrong:
            report(identifier, False, ", ".join(wrong) + " was changed before the training began")
        else:
            pairs = [name + "=" + str(value) for name, value in expected.items()]
            report(identifier, True, " ".join(pairs))


def apply(torch):
    """Apply what concerns torch; other hooks ask for their own part."""
    if not wanted():
        return
    from watchdog_train.client import loader_settings, training_settings

    check_environment()
    training_settings.apply(torch)
    loader_settings.apply(torch)
    training_settings.apply_to_batches(torch)
    threading = sys.modules.get("threading")
    register = getattr(threading, "_register_atexit", None)
    if register is not None:  # it is called before the slot is closed
        register(_at_the_end)


def prepare(identifier, module, function, *arguments):
    """Prepare a setting of a module of its own, which reports once it has something to change."""
    if parameters(identifier) is not None:
        try:
            full = "watchdog_train.client." + module
            __import__(full)
            getattr(sys.modules[full], function)(*arguments)
        except Exception as error:
            report(identifier, False, type(error).__name__ + ": " + str(error)[:200])


def report_unused(final=False):
    """Report settings that have found nothing to change: after the first step, and at exit.

    Before the final report only those that act before a first step.
    """
    for identifier in wanted():
        why = UNUSED.get(identifier)
        if identifier not in notes.answered() and (why or final):
            report(identifier, False, why or "the training had nothing that it changes")


@slot.harmless
def _at_the_end():
    if any(slot.words[word] for word in (L.W_OPTIMIZER_STEPS, L.W_MICRO_BATCHES)):
        report_unused(final=True)
        notes.flush(now=True)
