"""Where to go on from: the checkpoint that the supervisor chose, for the training it came from.

It must inject at most once in a process, and never over a value of the user's.
"""

import os

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, slot

_order = None  # type: dict | None
_used = False


def order():
    """What the supervisor asks to resume, an empty dict when nothing."""
    global _order
    if _order is None:
        _order = {}
        try:
            if slot.supervised and slot.resume_json:
                import json

                found = json.loads(slot.resume_json)
                if isinstance(found, dict) and isinstance(found.get("path"), str):
                    _order = found
        except Exception as error:
            notes.note("the resume order cannot be read: " + type(error).__name__)
    return _order


def checkpoint_for(format_name, output_dir, ordinal, given):
    """The path to resume this very training from, None when it is another one.

    Args:
        format_name: "hf" or "lightning".
        output_dir: by which this training is known: where it writes to, or its home.
        ordinal: which training of this process it is, 1-based.
        given: what the user said about resuming.
    """
    try:
        wanted = order()
        if _used or wanted.get("via") != "hook" or wanted.get("format") != format_name:
            return None
        if (wanted.get("ordinal") or 1) != ordinal:
            return None
        if not _same(wanted.get("output_dir") or os.path.dirname(wanted["path"]), output_dir):
            notes.note("not resumed: the checkpoint is of a training in another directory")
            return None
        if given is not None and given is not False:
            notes.note("not resumed: the script says itself where to resume from")
            return None
        if not os.path.exists(wanted["path"]):
            notes.note("not resumed: the checkpoint is gone")
            return None
        return wanted["path"]
    except Exception as error:
        notes.note("not resumed: " + type(error).__name__)
        return None


def injected():
    """The checkpoint has been handed over."""
    global _used
    _used = True
    try:
        step = order().get("step")
        if isinstance(step, int) and step >= 0:
            slot.words[L.W_RESUMED_STEP] = step + 1
        notes.note("resumed from " + order()["path"])
    except Exception:
        pass


def loaded(source):
    """The script has read a file; was it the checkpoint that this attempt resumes from?

    For a script that is given the path by an argument this is the proof that it has used it, and
    what its own count of optimizer steps, which begins again at zero, has to be added to.
    """
    try:
        wanted = order()
        if not wanted or _used or wanted.get("format") in ("hf", "lightning"):
            return
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            if _same(path, wanted["path"]) or _same(os.path.dirname(path), wanted["path"]):
                injected()
    except Exception:
        pass


def is_the_one(path):
    """Whether this is the checkpoint that the attempt is to go on from."""
    try:
        return bool(path and order()) and _same(os.fspath(path), order()["path"])
    except Exception:
        return False


def _same(one, other):
    return os.path.realpath(one) == os.path.realpath(other)
