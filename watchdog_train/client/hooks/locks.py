"""Lock files of this run: their makers, and the removal of one whose maker is proven dead.

A lock that is only a file stays when its process is killed, and blocks all others. It must remove
only the very file that a process of this run has recorded as its own, after that process is gone:
any other may be held by a process on another machine.
"""

import os
import time

from watchdog_train.client import notes, phases, roles, settings, slot

_MOST_BYTES = 1 << 20
_MOST_FILES = 4096
_LOOK_EVERY_S = 5.0
_looked: dict = {}


def arm(module):
    if module.__name__ == "filelock":
        _around_soft_lock(module.SoftFileLock)
    else:
        _around_baton(module.FileBaton)


def _record(path):
    try:
        if not slot.supervised or not slot.attempt_dir:
            return
        import json

        found = os.stat(path)
        line = {
            "path": os.path.abspath(path),
            "inode": found.st_ino,
            "device": found.st_dev,
            "mtime_ns": found.st_mtime_ns,
            "pid": os.getpid(),
            "start": roles.start_ticks(),
            "boot": _boot(),
            "host": _host(),
        }
        data = json.dumps(line).encode("ascii") + b"\n"
        slot.append_file(slot.attempt_dir, "locks", data, _MOST_BYTES)
    except Exception as error:
        notes.note("a lock was not recorded: " + type(error).__name__)


def _clear(path):
    """Remove a lock that is in the way, if the plan asks for it and its maker is proven dead."""
    if settings.parameters("clear-stale-lock") is None:
        return False
    took, why = False, ""
    try:
        path = os.path.abspath(path)
        now = time.monotonic()
        if now - _looked.get(path, -_LOOK_EVERY_S) < _LOOK_EVERY_S:
            return False
        _looked[path] = now
        owner = _recorded(path, os.stat(path))
        if owner is None:
            why = path + " is not known to be of this run: left alone"
        elif not _is_gone(owner):
            why = path + " is held by a process that lives"
        else:
            os.unlink(path)
            took, why = True, path + " of process %d, which is gone" % owner["pid"]
    except FileNotFoundError:
        return False
    except Exception as error:
        why = type(error).__name__ + ": " + str(error)[:200]
    settings.report("clear-stale-lock", took, why)
    return took


def _around_baton(baton):
    """FileBaton of torch: its locks are recorded; before it waits, a stale one is removed."""

    @phases.replacing(baton, "try_acquire")
    def try_acquire(acquire, self):
        made = acquire(self) or (_clear(self.lock_file_path) and acquire(self))
        if made:
            _record(self.lock_file_path)
        return made

    baton.wait = phases.before(lambda self: _clear(self.lock_file_path), baton.wait)


def _around_soft_lock(lock):
    """SoftFileLock of filelock, by its own way to take the lock once."""

    def acquired(_result, self):
        if self.is_locked:
            _record(self.lock_file)

    acquire = phases.before(lambda self: _clear(self.lock_file), lock._acquire)
    lock._acquire = phases.after(acquire, acquired)


def _recorded(path, found):
    """The process of this run that has made this very file, None if unknown."""
    import json

    attempts = os.path.dirname(slot.attempt_dir)
    seen = 0
    for attempt in sorted(os.listdir(attempts), reverse=True):
        folder = os.path.join(attempts, attempt)
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            if not (name.startswith("locks.") and name.endswith(".jsonl")):
                continue
            seen += 1
            if seen > _MOST_FILES:
                return None
            with open(os.path.join(folder, name), "rb") as file:
                for line in file.read(_MOST_BYTES).split(b"\n")[:-1]:
                    owner = json.loads(line)
                    if (
                        owner["path"] == path
                        and owner["inode"] == found.st_ino
                        and owner["device"] == found.st_dev
                        and owner["mtime_ns"] == found.st_mtime_ns
                    ):
                        return owner
    return None


def _is_gone(owner):
    """Whether the process of a record has ended, by its pid, its start and the boot of then.

    A rank on another machine may hold it, and looks the same as one before a reboot of this one.
    """
    if not owner["start"] or not owner["boot"] or owner["host"] != _host():
        return False
    if owner["boot"] != _boot():
        return True
    try:
        with open("/proc/" + str(int(owner["pid"])) + "/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        # A zombie has given up its files already.
        return fields[0] in (b"Z", b"X") or int(fields[19]) != owner["start"]
    except (FileNotFoundError, ProcessLookupError):
        # Another pid namespace would not show it: only where we see ourselves by our own number.
        return os.path.exists("/proc/" + str(os.getpid()) + "/stat")


def _host():
    return os.uname().nodename if hasattr(os, "uname") else ""


def _boot():
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).decode("ascii").strip()
    except Exception:
        return ""
