"""Saves: the phase around them, and a record of the files of a finished one.

It must never raise, never touch the files, and never change what a save gives back or throws.
"""

import _thread
import itertools
import os
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, resume, slot

_MOST_FILES = 4096
_MOST_OPEN = 16
_MOST_BYTES = 512 << 10
_MOST_LOG_BYTES = 32 << 20

# Threads inside a save of a directory: its files are part of that one record.
_outer: dict = {}
# Open files that a save was written to, by path.
_open_files: dict = {}
# The number of the exception that ended a save last, and where that save wrote to.
failed = (0, "")


def recorded(format_name, original, position, name):
    """`original`, a function that saves to one path, with phase, counters and a record."""

    def wrapper(*args, **kwargs):
        counters = {}
        try:
            target = kwargs[name] if name in kwargs else args[position]
            if slot.supervised:
                counters = resume.look_at_save(args[0] if args else kwargs.get("obj"), target)
        except Exception as error:
            slot.raise_if_of_a_signal(error)
            target = None
        token = begin()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _fails(error, target)
            raise
        finally:
            end(token)
        if _thread.get_ident() not in _outer:
            try:
                _record_target(target, format_name, counters)
            except BaseException:
                # Of a signal handler of the script, or Ctrl-C: the save has ended all the same.
                _record_target(target, format_name, counters)
                raise
        return result

    return phases.like(wrapper, original)


@slot.harmless
def _record_target(target, format_name, counters):
    if isinstance(target, (str, os.PathLike)):
        record(target, format_name, counters=counters)
    else:
        _record_when_closed(target, format_name, counters)


@slot.harmless
def _fails(error, target):
    global failed
    failed = id(error), os.path.abspath(os.fspath(getattr(target, "name", target)))


def _record_when_closed(file, format_name, counters):
    """An open file is complete when its writer has closed it; memory has no name to record."""
    import json  # noqa: F401 - not first by the pulse thread
    import weakref

    path = os.path.abspath(os.fspath(file.name))
    inodes = _inodes(path)
    known = _open_files.get(path)
    # A kill before it is seen to be closed must not lose it; one file may take many tensors.
    if inodes and (known is None or known[0]() is not file):
        record(path, format_name, {}, counters=counters)
    # A file that is opened again is empty for a while: that is not the save.
    step = L.step_of(slot.words)
    _open_files[path] = (weakref.ref(file), format_name, step, inodes, file.tell(), counters)
    if len(_open_files) > _MOST_OPEN:
        _open_files.pop(next(iter(_open_files)), None)


def _settle():
    """Record the open files that have been closed since."""
    for path, (file, format_name, step, inodes, size, counters) in list(_open_files.items()):
        opened = file()
        if opened is not None and not opened.closed:
            continue
        _open_files.pop(path, None)
        try:
            found = _named_now(path, inodes)
            if found is not None and os.stat(found).st_size >= size:
                record(found, format_name, step=step, counters=counters)
        except Exception:
            pass


def _named_now(path, inodes):
    """The path itself, or what it or its folder was renamed to, as an atomic save does."""
    if os.path.exists(path):
        return path
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        folder = _entry(os.path.dirname(folder), inodes[1])
    return folder and _entry(folder, inodes[0])


def _entry(folder, inode):
    with os.scandir(folder) as entries:
        near = itertools.islice(entries, _MOST_FILES)
        return next((entry.path for entry in near if entry.inode() == inode), None)


def _inodes(path):
    """Of the path and of the folders above it: a save is found by them after it was renamed."""
    found = []
    try:
        for _ in range(4):
            found.append(os.stat(path).st_ino)
            path = os.path.dirname(path)
    except OSError as error:
        slot.raise_if_of_a_signal(error)
    return found


def begin():
    if slot.supervised:
        resume.hold_save()
    token = phases.enter(L.PHASE_CHECKPOINT)
    _count(L.W_SAVES_BEGUN)
    return token


def end(token):
    _count(L.W_SAVES_ENDED)
    phases.leave(token)


def of_directory(original, act=None):
    """`original`, a save of several files as parts of one, with phase and counters.

    After a save `act` is called with its result and arguments; an error of it becomes a note.
    """

    def wrapper(*args, **kwargs):
        thread = _thread.get_ident()
        _outer[thread] = True
        token = begin()
        try:
            result = original(*args, **kwargs)
        finally:
            _outer.pop(thread, None)
            end(token)
        try:
            if act is not None:
                act(result, *args, **kwargs)
        except Exception as error:
            slot.raise_if_of_a_signal(error)
            notes.note("a checkpoint was not recorded: " + type(error).__name__)
        return result

    return phases.like(wrapper, original)


@slot.harmless
def record_directory(path, format_name, output_dir, step=None):
    files: dict = {}
    for folder, _, names in os.walk(path):
        for name in names:
            if len(files) < _MOST_FILES:
                full = os.path.join(folder, name)
                files[os.path.relpath(full, path).replace(os.sep, "/")] = _stat(full)
    if files:
        record(path, format_name, files, step=step, output_dir=output_dir)


def record(path, format_name, files=None, *, step=None, output_dir=None, home=None, counters=None):
    """Append one line about a finished save: of this file, or of these files in a directory."""
    try:
        if not slot.supervised or not slot.attempt_dir:
            return
        import json

        path = os.path.abspath(os.fspath(path))
        if files is None:
            files = {os.path.basename(path): _stat(path)}
        if step is None:
            step = L.step_of(slot.words)
        place = home or output_dir
        line = {
            "path": path,
            "format": format_name,
            "step": step,
            "ordinal": slot.words[L.W_TRAIN_ORDINAL] or None,
            "output_dir": output_dir,
            "home": home,
            "nth": resume.nth_of(place) if place else None,
            "signature": resume.signature_of(place) if place else None,
            "t": time.time(),
            "files": files,
            "inodes": _inodes(path),
            "counters": counters or {},
            "attempt": slot.attempt,
        }
        data = json.dumps(line).encode("ascii") + b"\n"
        if len(data) > _MOST_BYTES:
            notes.note("a save was not recorded: too many files in " + path)
            return
        try:
            slot.append_file(slot.attempt_dir, "saves", data, _MOST_LOG_BYTES)
        except OSError as error:  # the disk of the run is full; the checkpoints' own may not be
            slot.raise_if_of_a_signal(error)
            slot.append_file(slot.slot_dir, "saves", data, _MOST_LOG_BYTES)
    except Exception as error:
        slot.raise_if_of_a_signal(error)
        notes.note("a save was not recorded: " + type(error).__name__)


def _stat(path):
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


@slot.harmless
def _count(word):
    if slot.supervised:
        slot.words[word] += 1
        slot.words[L.W_LAST_BEAT_NS] = slot.now_ns()


def _after_fork():
    _outer.clear()
    _open_files.clear()


milestones.settling.append(_settle)
slot.on_fork_child.append(_after_fork)
