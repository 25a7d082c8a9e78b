"""Text for the supervisor: a small JSON side file, replaced at most once a second.

It must never raise, and must not import json: that costs every Python start of the tree, and the
pulse thread, which writes here, too, could meet an import of the training in the middle.
"""

import _thread
import os
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import slot

_MOST_NOTES = 40
_MOST_DIRECTORIES = 32
_LONGEST = 400
_MOST_BYTES = 64 << 10

_hooks: dict = {}
_settings: dict = {}
_output_dirs: list = []
_notes: list = []
_dirty = False
_written_at = -10.0
_writing = _thread.allocate_lock()

# More of the file: name -> a function that gives the value.
parts: dict = {}


@slot.harmless
def note(text):
    text = str(text)[:_LONGEST]
    if text not in _notes:
        _notes.append(text)
        del _notes[:-_MOST_NOTES]
        touch()


@slot.harmless
def hook(name, status):
    # A hook may wait for several modules: what went wrong with one is not made good by another.
    if status != "armed" or name not in _hooks:
        _hooks[name] = str(status)[:_LONGEST]
    if status.startswith("failed"):
        slot.words[L.W_HOOKS_FAILED] += 1
    touch()


def arm_each(act, parts):
    """Call `act` with each part of a hook; a failure does not stop the others.

    Raises RuntimeError with all that failed.
    """
    problems = []
    for part in parts:
        try:
            act(part)
        except Exception as error:
            name = getattr(part, "__name__", part)
            problems.append(name + " " + type(error).__name__ + ": " + str(error)[:100])
    if problems:
        raise RuntimeError("; ".join(problems))


@slot.harmless
def setting(identifier, bit, took, why):
    """Whether a setting of the plan is in effect; one that took stays taken."""
    before = _settings.get(identifier)
    if before is not None and before["took"] and not took:
        note(identifier + ": " + why)
        return
    if before is not None and before["took"] and str(why).startswith("already"):
        # What a framework makes again from a changed loader says nothing about the change.
        return
    answer = {"took": bool(took), "why": str(why)[:_LONGEST]}
    if answer != before:
        _settings[identifier] = answer
        touch()
    if took and 0 <= bit < 64:
        slot.words[L.W_SETTINGS_TAKEN] |= 1 << bit


def answered():
    return _settings


@slot.harmless
def output_dir(path):
    path = os.path.abspath(os.fspath(path))
    if path not in _output_dirs:
        _output_dirs.append(path)
        del _output_dirs[:-_MOST_DIRECTORIES]
        touch()


def touch():
    global _dirty
    _dirty = True
    flush()


def flush(now=False):
    """Write the side file when there is something new: once a second, or now."""
    global _dirty, _written_at
    try:
        if not _dirty or not slot.supervised or not slot.has_slot:
            return
        clock = time.monotonic()
        if not now and clock - _written_at < 1.0:
            return
        if not _writing.acquire(False):
            return
        try:
            _written_at = clock
            _dirty = False
            _write()
        finally:
            _writing.release()
    except Exception:
        _dirty = True


def _write():
    words = slot.words
    pid = os.getpid()
    content = {
        "pid": pid,
        "start": words[L.W_START],
        "attempt": words[L.W_ATTEMPT],
        "role": L.ROLES[words[L.W_ROLE]],
        "hooks": dict(_hooks),
        "settings": dict(_settings),
        "output_dirs": list(_output_dirs),
        "can_save": bool(words[L.W_CAN_BE_ASKED] & 1),
        "changes": words[L.W_MILESTONE],
        "notes": list(_notes),
    }
    for name, part in parts.items():
        content[name] = part()
    data = encode(content).encode("ascii")
    if len(data) > _MOST_BYTES:
        content["notes"] = ["notes were dropped: too long"]
        data = encode(content).encode("ascii")
    slot.replace_file(str(pid) + L.NOTE_SUFFIX, data)


def _after_fork():
    global _dirty, _writing, _written_at
    # Hooks and settings hold in the child, too, and its own file has to say so.
    _dirty, _written_at = True, -10.0
    # The thread that held it is the parent's.
    _writing = _thread.allocate_lock()
    del _notes[:]


def encode(value):
    """JSON without the json module, as ASCII text: of dicts, lists, tuples, strings, numbers.

    What JSON cannot say becomes null: not-a-number, infinities, and objects of other types.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if value - value == 0 else "null"
    if isinstance(value, dict):
        pairs = [_text(str(key)) + ":" + encode(item) for key, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    return "null"


def _text(text):
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"' + text + '"'
    parts = []
    for character in text:
        number = ord(character)
        if number > 0xFFFF:
            number -= 0x10000
            parts.append("\\u%04x\\u%04x" % (0xD800 | number >> 10, 0xDC00 | number & 0x3FF))
        elif 31 < number < 127 and character not in '"\\':
            parts.append(character)
        else:
            parts.append("\\u%04x" % number)
    return '"' + "".join(parts) + '"'


slot.on_fork_child.append(_after_fork)
