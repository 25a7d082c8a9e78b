"""Argument parsers: that they are through is a place; which options may resume is noted, once.

It must never run a script for its help, and notes no value that may be a secret.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, slot

_MOST = 24
_LONGEST = 200
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
        "default": _default(action.default),
    }


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
