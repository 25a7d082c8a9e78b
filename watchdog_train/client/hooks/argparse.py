"""Argument parsers: that they are through is a place; which options may resume is noted, once.

It must never run a script for its help, and notes none that may take a secret.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, slot

_MOST = 24
_LONGEST = 200
# Looked through in a hundredth of a second; torch is not among them yet.
_MOST_OBJECTS = 300_000
# One of them is in the name of an option that resumes.
_WORDS = (
    *("resume", "restart", "load_from", "load_checkpoint", "from_checkpoint"),
    *("restore", "init_from"),
)
_SECRETS = ("token", "key", "secret", "password", "credential", "auth")
# Values by which a script resumes from the checkpoint that it finds itself.
_FINDS_ITSELF = ("resume", "auto", "latest", "last")

# The arguments that resume, {checkpoint} for the path of one.
_options: list = []


def arm(module):
    parser = module.ArgumentParser
    parser.parse_known_args = phases.after(parser.parse_known_args, _parsed)
    _parsed_before(parser)


def _parsed_before(kind):
    """A script may read its arguments before it imports torch, and with it this hook.

    Only with a single such parser: of several some may be a library's own.
    """
    import gc

    name = os.path.basename(sys.argv[0])
    objects = gc.get_objects()
    if len(objects) > _MOST_OBJECTS:
        return
    found = [each for each in objects if issubclass(type(each), kind) and each.prog == name]
    if len(found) == 1:
        phases.guarded(_parsed, None, found[0])


def _parsed(_result, parser, *_args, **_kwargs):
    if slot.words[L.W_ROLE] != L.ROLE_RANK:
        return
    for action in list(parser._actions)[:2000]:
        if len(_options) < _MOST:
            _note(action)
    milestones.reached("arguments parsed")


def _note(action):
    names = [name for name in action.option_strings if name.startswith("--")]
    plain = names[0].replace("-", "_").replace(".", "_").lower() if names else ""
    if any(word in plain for word in _WORDS) and not any(word in plain for word in _SECRETS):
        arguments = _resumes(names[0][:_LONGEST], action)
        if arguments is not None and arguments not in _options:
            _options.append(arguments)


def _resumes(name, action):
    """The arguments by which this option resumes, None without a value that surely does."""
    if action.nargs == 0:  # a flag: --resume, not --no-resume
        on = action.const is True or type(action).__name__ == "BooleanOptionalAction"
        return name if on else None
    values = action.choices
    if values is None and name.endswith(("init_from", "init-from")):
        values = ("resume",) if action.default == "scratch" else ()
    if values is not None:
        return next((name + "=" + value for value in _FINDS_ITSELF if value in values), None)
    if action.nargs not in (None, "?"):
        return None
    kind = getattr(action.type, "__name__", "")
    # Not what is converted to a number.
    is_text = action.type not in (int, float, complex) and "bool" not in kind
    if action.nargs is None and isinstance(action.default, bool):
        return None  # its value is true or false, whatever converts it
    return name + " {checkpoint}" if is_text else None


def _listed():
    try:
        # nanoGPT and its descendants: `--name=value` sets a variable that the script has listed.
        listed = vars(sys.modules["__main__"]).get("config_keys")
        if not _options and isinstance(listed, list) and "init_from" in listed:
            return ["--init_from=resume"]
    except Exception:
        pass
    return list(_options)


notes.parts["options"] = _listed
slot.on_fork_child.append(_options.clear)
