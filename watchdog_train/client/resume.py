"""Resuming: the checkpoint that the supervisor chose, for the training it came from.

It must inject at most once in a process, and never over a value of the user's.
"""

import os
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, slot

_MOST_PLACES = 1000
# A time as a float of seconds is exact to less than a microsecond; no save takes as little as this.
_SAME_MOMENT_S = 0.001
_END_BYTES = 65536
_UNDER_WAY = r"[._-](?:tmp|temp|part|partial|incomplete)[._-]?(?=/|$)|tmp[._-]"
# For the supervisor to stop a training before its first save: it checks once a second.
_HOLD_S = 20.0
# Variables that differ between the ranks of a job. Lightning starts its own with a local rank
# alone, and torchrun starts all ranks again: all of them have to resume alike.
_WHICH_RANK = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "TORCHELASTIC_RESTART_COUNT",
)

_ELSEWHERE = "the checkpoint is of a training in another directory"

_order = None  # type: dict | None
_used = False
# The script has read something else that may be a checkpoint, or has saved beyond the plan's: from
# then on a lower count is by design, as of the next fold.
_settled = False
# The step that the first one of the training that has just begun must be above.
_awaited = None  # type: int | None
_held = False
# How many trainings have begun in this process, by where they write to.
_begun: dict = {}
# The newest of them, for the side file.
_training: dict = {}


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


def checkpoint_for(format_name, output_dir, ordinal, given, signature=None):
    """The path to resume this very training from, None when it is another one.

    To be called once for each training, in the order in which they begin: it counts them. One is
    known by `output_dir`, where it writes to, or its home; by `ordinal` in this process, 1-based;
    and by its `signature`. `given` is the user's argument about resuming.
    """
    global _awaited
    _awaited = None
    try:
        nth = _begins(output_dir, ordinal, signature)
        wanted = order()
        if _used or wanted.get("format") != format_name or not _is_meant(wanted, nth, ordinal):
            return None
        by_hook = wanted.get("via") == "hook"
        # A script that says so itself is left alone; its first step shows whether it resumed.
        injects = by_hook and (given is None or given is False)
        why = _why_not(wanted, output_dir, ordinal, given, signature)
        if why is None and injects and not _claimed():
            why = "another process of this attempt has resumed from it already"
        if why is None:
            _awaited = wanted.get("step")
            return wanted["path"] if injects else None
        # Of several trainings all but one are in other places; only the expected one is news.
        if by_hook and (why != _ELSEWHERE or wanted.get("ordinal") in (None, ordinal)):
            notes.note("not resumed: " + str(why))
        return None
    except Exception as error:
        notes.note("not resumed: " + type(error).__name__)
        return None


def _why_not(wanted, output_dir, ordinal, given, signature):
    """Why this training does not resume from the checkpoint, None where it should."""
    if not _same(wanted.get("output_dir") or os.path.dirname(wanted["path"]), output_dir):
        # A directory with the date in its name is another one in each attempt.
        known = wanted.get("ordinal") == ordinal == 1 and wanted.get("signature") == signature
        if not (known and wanted.get("sole")):
            return _ELSEWHERE
    if given not in (None, False, True) and not _same(given, wanted["path"]):
        return "the script says itself where to resume from"
    if not os.path.exists(wanted["path"]):
        return "the checkpoint is gone"
    if _is_written_over(wanted):
        return "another training has written over the checkpoint since"
    before = wanted.get("signature")
    if before and signature and before != signature:
        return "another model, data or schedule than the checkpoint came from"
    return None


def first_step(step):
    """A framework's training, which continues its checkpoint's count, has done its first step."""
    global _awaited
    if isinstance(_awaited, int) and step < _awaited:
        slot.words[L.W_BEGAN_ANEW] = step + 1
    _awaited = None


def look_at_save(content, path):
    """A script that counts for itself is about to save: is it behind the checkpoint?

    Decided at its first save to such a name as the checkpoint's, by the numbers that both of them
    hold, else by those in the names. Returns the numbers by their names.
    """
    global _settled
    counters = {}
    for name in L.STEP_NAMES + L.EPOCH_NAMES if type(content) is dict else ():
        value = content.get(name)
        if type(value) is int and 0 <= value < L.MOST_COUNTED:
            counters[name] = value
    wanted = order()
    if not wanted or _settled or wanted.get("format") in ("hf", "lightning"):
        return counters
    if not isinstance(path, (str, os.PathLike)):
        path = getattr(path, "name", "")  # an open file
    named = _numbers(
        os.path.realpath(path), os.path.realpath(wanted.get("saved_as") or wanted["path"])
    )
    if named is None:
        return counters
    if not _used and os.path.exists(_loaded_name()):
        _settled = True  # another process of this attempt resumes
        return counters
    before = wanted.get("counters") or {}
    pairs = [(name, counters[name], before[name]) for name in counters if name in before]
    done = slot.words[L.W_OPTIMIZER_STEPS]
    if not pairs:
        # Numbers in names count steps where this process has made as many.
        pairs = [
            ("step", now, then)
            for now, then in named
            if then == wanted.get("step") and now in (done, done - 1)
        ]
    if not pairs and _used and all(now >= then for now, then in named):
        # It has read the checkpoint, and the numbers in its names continue.
        slot.words[L.W_CONTINUED] = int(any(now > then for now, then in named))
    elif not pairs and not _used and wanted.get("unkept") and os.path.exists(path):
        # It would be lost: there is no copy of the checkpoint, and nothing says that it resumed.
        slot.words[L.W_BEGAN_ANEW] = done + 1
    elif pairs:
        _settled = True
        _judge(pairs, done, any(now > then for now, then in named))
    return counters


def _judge(pairs, done, other):
    """Compare the counts at the first save with the checkpoint's: (name, now, then), never empty.

    `done` are optimizer steps of this process. `other`: a number in the name is higher, so a lower
    count is of another fold.
    """
    epochs = [(now, then) for name, now, then in pairs if name in L.EPOCH_NAMES]
    steps = [(now, then) for name, now, then in pairs if name in L.STEP_NAMES]
    counts = epochs + steps
    lower = all(now <= then for now, then in counts) and any(now < then for now, then in counts)
    if _used:
        # It has read the checkpoint: to resume at the start of an epoch, or only to look at it.
        began = [now < then and 0 < now <= done for now, then in steps]
        lower = lower and (any(now < then for now, then in epochs) or (not epochs and all(began)))
    # A count that is not above the checkpoint's after as many steps has begun at zero.
    again = [now == then and 0 < now <= done for now, then in steps]
    if (lower or (again and all(again) and len(again) == len(counts))) and not other:
        slot.words[L.W_BEGAN_ANEW] = counts[-1][0] + 1
        return
    from_zero = bool(steps) and not epochs and all(now <= done for now, _ in steps)
    if any(now > then for now, then in epochs or steps) and not (lower or from_zero):
        slot.words[L.W_CONTINUED] = 1
        if not _used and steps and abs(steps[0][0] - done - steps[0][1]) <= 1:
            # The load was not seen; its step is what this process counts on from.
            slot.words[L.W_RESUMED_STEP] = steps[0][1] + 1


def _numbers(path, wanted):
    """Numbers of the same places in both names, (now, then); None for another kind of name.

    A save may still have a temporary name: step_80.part/, ckpt.pt.tmp.
    """
    import re

    one, other = path.split(os.sep), wanted.split(os.sep)
    if len(one) == len(other) + 1:
        one = one[:-1]  # of a checkpoint that is a folder
    if len(one) != len(other) or one[:-2] != other[:-2]:
        return None
    one, other = (re.sub(_UNDER_WAY, "", "/".join(each[-2:]).lower()) for each in (one, other))
    if re.sub("[0-9]+", "#", one) != re.sub("[0-9]+", "#", other):
        return None
    now, then = (map(int, re.findall("[0-9]+", each)) for each in (one, other))
    return list(zip(now, then))  # noqa: B905 - for Python 3.8


@slot.harmless
def hold_save():
    """Wait, once, before a save of a training that began again: the supervisor will stop it."""
    global _held
    if not _held and slot.words[L.W_BEGAN_ANEW] and order().get("hold"):
        _held = True
        time.sleep(_HOLD_S)


@slot.harmless
def nth_of(home):
    """Which training into this place the newest one of this process is, None before the first."""
    return _begun.get(os.path.realpath(home))


@slot.harmless
def signature_of(home):
    return _training["signature"] if _training["home"] == os.path.abspath(home) else None


def _begins(home, ordinal, signature):
    place = os.path.realpath(home)
    nth = _begun.get(place, 0) + 1
    if len(_begun) < _MOST_PLACES:
        _begun[place] = nth
    _training.update(home=os.path.abspath(home), nth=nth, ordinal=ordinal, signature=signature)
    notes.touch()
    return nth


def _is_meant(wanted, nth, ordinal):
    if wanted.get("nth"):
        # Not the ordinal: a script that skips what it has finished counts from one again.
        return wanted["nth"] == nth
    if wanted.get("ordinal"):
        return wanted["ordinal"] == ordinal
    return nth == 1


def _is_written_over(wanted):
    """Whether it is a newer save than the one that was chosen.

    Two stages may write checkpoints of the same names into one directory: the first, trained
    again, has by then put its own in the place of the second's.
    """
    chosen = wanted.get("saved_at")
    if not isinstance(chosen, float):
        return False
    path = wanted["path"]
    if wanted.get("format") == "hf":
        # The last file of each of its saves; others may be touched without one.
        path = os.path.join(path, "trainer_state.json")
    return os.stat(path).st_mtime > chosen + _SAME_MOMENT_S


def _claimed():
    """Whether this is the first process of its rank that resumes in this attempt.

    A pool that starts a new process for each task would else resume every one of them.
    """
    parts = ["resumed", slot.attempt, slot.words[L.W_RANK]]
    parts += [os.environ.get(name, "") for name in _WHICH_RANK]
    return slot.claim("-".join([str(part)[:12].replace("/", "") for part in parts]))


def injected():
    global _used
    _used = True
    try:
        step = order().get("step")
        # That it was loaded is worth a report even if its step is unknown.
        slot.words[L.W_RESUMED_STEP] = 1 + (max(0, step) if isinstance(step, int) else 0)
        slot.words[L.W_LOAD_BEGUN] |= 1
        notes.note("resumed from " + order()["path"])
    except Exception:
        pass


def loaded(source):
    """The script has read a file; was it the checkpoint that this attempt resumes from?"""
    load_ended(load_begins(source))


@slot.harmless
def load_begins(source):
    """The script begins to read a file: True for the checkpoint that this attempt resumes from.

    Also for a copy of it, by size and end. False for another that may be a checkpoint.
    """
    wanted = order()
    if not wanted or _used or wanted.get("format") in ("hf", "lightning"):
        return None
    found = _is_wanted(source, wanted["path"])
    if found:
        slot.words[L.W_LOAD_BEGUN] |= 1
    return found


@slot.harmless
def load_ended(found):
    """The checkpoint was read without an exception.

    For a script that is given the path by an argument, the checkpoint's step is added to its count
    of optimizer steps, which begins again at zero. That it resumed is not proven by the load.
    """
    global _settled
    if found:
        injected()
        os.close(os.open(_loaded_name(), os.O_WRONLY | os.O_CREAT, 0o600))
    elif found is False:
        _settled = True


def _is_wanted(source, wanted):
    if hasattr(source, "getbuffer"):
        with source.getbuffer() as view:
            return _holds(view, len(view), wanted)
    if not isinstance(source, (str, os.PathLike)):
        source = getattr(source, "name", None)  # an open file
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = os.path.realpath(source)
    if _same(path, wanted) or _same(os.path.dirname(path), wanted):
        return True
    if os.path.isfile(path) and os.path.isfile(wanted):
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _END_BYTES))
            if _holds(file.read(_END_BYTES), size, wanted):
                return True
    beside = _same(os.path.dirname(path), os.path.dirname(os.path.realpath(wanted)))
    return False if beside else None


def _loaded_name():
    """A file that tells other processes of this attempt (a script's next command) of the load.

    One that trains something else counts from its start, and one that only saves has read nothing.
    """
    return os.path.join(slot.slot_dir, "loaded-" + str(slot.attempt))


def _holds(end, size, path):
    """Whether a file has this size and end, where a zip has its checksums."""
    with open(path, "rb") as file:
        if not size or size != os.fstat(file.fileno()).st_size:
            return False
        file.seek(max(0, size - _END_BYTES))
        return file.read(_END_BYTES) == bytes(end[-_END_BYTES:])


def is_the_one(path):
    """Whether this is the checkpoint that the attempt resumes from."""
    try:
        return bool(path and order()) and _same(os.fspath(path), order()["path"])
    except Exception:
        return False


def _same(one, other):
    return os.path.realpath(one) == os.path.realpath(other)


def _after_fork():
    _begun.clear()
    _training.clear()


notes.parts["training"] = lambda: dict(_training) or None
slot.on_fork_child.append(_after_fork)
