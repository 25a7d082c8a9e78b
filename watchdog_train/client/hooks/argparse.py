"""Argument parsers: that they are through is a place; which options may resume is noted, once.

It must never run a script for its help, and notes no value that may be a secret.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, slot

_MOST = 24
_LONGEST = 200
# Looked through in a hundredth of a second; torch is not among them yet.
_MOST_OBJECTS = 300_000
# What an option is for, by a word in its name; the first that fits.
_KINDS = (
    ("resume", ("resume", "restart", "load_from", "load_checkpoint", "from_checkpoint", "restore")),
    ("checkpoint", ("checkpoint", "ckpt", "snapshot")),
    (
        "output",
        ("output", "out_dir", "save_dir", "save_path", "work_dir", "project_dir", "root_dir"),
    ),
)
# Names that have such a word and are something else.
_OTHERS = ("gradient_checkpoint", "activation_checkpoint", "save_total", "output_size", "n_outputs")
_SECRETS = ("token", "key", "secret", "password", "credential", "auth")

_options: dict = {}


def arm(module):
    """Hook into argparse."""
    parser = module.ArgumentParser
    original = parser.parse_known_args

    def parse_known_args(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        _parsed(self)
        return result

    parser.parse_known_args = phases.like(parse_known_args, original)
    _parsed_before(parser)


def _parsed_before(kind):
    """A script may read its arguments before it imports torch, and with it this hook.

    Only where there is one such parser: of several some may be a library's own.
    """
    import gc

    name = os.path.basename(sys.argv[0])
    objects = gc.get_objects()
    if len(objects) > _MOST_OBJECTS:
        return
    found = [each for each in objects if issubclass(type(each), kind) and each.prog == name]
    if len(found) == 1:
        _parsed(found[0])


def _parsed(parser):
    try:
        if not slot.supervised or slot.words[L.W_ROLE] != L.ROLE_RANK:
            return
        for action in list(parser._actions)[:2000]:
            if len(_options) < _MOST:
                _note(action)
        milestones.reached("arguments parsed")
    except Exception as error:
        notes.note("the options of the script were not read: " + type(error).__name__)


def _note(action):
    names = [name for name in action.option_strings if name.startswith("--")]
    if not names or names[0] in _options:
        return
    name = names[0][:_LONGEST]
    kind = kind_of(name)
    if kind is None:
        return
    _options[name] = {
        "name": name,
        "kind": kind,
        # An option without a value (store_true) cannot name a checkpoint.
        "takes_value": action.nargs != 0,
        "takes_text": _takes_text(action),
        "default": _default(action.default),
    }


def _takes_text(action):
    """Whether a path may be its value: not where it is converted to a number, or one of a few."""
    if action.choices is not None or action.nargs not in (None, "?"):
        return False
    name = getattr(action.type, "__name__", "")
    return action.type not in (int, float, complex) and "bool" not in name


def kind_of(name):
    """What an option is for by its name: resume, checkpoint, output, or None for another."""
    plain = name.lstrip("-").replace("-", "_").replace(".", "_").lower()
    if any(word in plain for word in _OTHERS + _SECRETS):
        return None
    for kind, words in _KINDS:
        if any(word in plain for word in words):
            return kind
    return None


def _default(value):
    if value is None or isinstance(value, (bool, int)):
        return value
    # An address may carry a password.
    if isinstance(value, str) and len(value) <= _LONGEST and "://" not in value:
        return value
    return None


notes.parts["options"] = lambda: list(_options.values())
slot.on_fork_child.append(_options.clear)
