"""Named places before the first step, so that a hang there has a name.

It must never raise, and keeps a bounded list: a place that is entered again takes its old entry.
Times are of time.monotonic(), which on one machine is the same clock for every process.
"""

import _thread

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases, slot

MOST = 48
MOST_MARKS = 16
_LONGEST_NAME = 80
_NAME, _BEGIN, _END, _TIMES, _FAILED, _MARK = range(6)

# [name, begin, end or None, how often it was entered, whether an exception left it, whether it is
# the user's], newest last
_entries: list = []
# Called before the next place is entered, and by the pulse thread: ends a place whose end no hook
# sees.
settling: list = []

BATCH = "first batch"
BACKWARD = "first backward pass"
STEP = "first step"
BACKWARDS_WITHOUT_STEP = 8

# What this training has been through: name -> token of the place, or None once it was left.
_places: dict = {}
_backwards = [0]


@slot.harmless
def begin(name):
    """A place is entered; the token for end(), None when there is nothing to end."""
    if not slot.supervised or not _may_speak():
        return None
    settle()
    entry = _add(name, mark=False)
    if entry is None:
        return None
    _changed()
    return (entry, slot.generation)


@slot.harmless
def end(token, failed=False):
    """It is left, by an exception if `failed`."""
    # A process forked in between has entries of its own.
    if token is not None and token[1] == slot.generation and token[0][_END] is None:
        token[0][_END] = slot.now_ns() / 1e9
        token[0][_FAILED] = bool(failed)
        _changed()


@slot.harmless
def reached(name, mark=False):
    """A place without extent: a training that has finished, or a mark of the user."""
    if slot.supervised and (mark or _may_speak()):
        settle()
        entry = _add(name, mark)
        if entry is not None:
            entry[_END] = entry[_BEGIN]
            _changed()


def training_finished():
    """A loop is over: from here on requests are not read."""
    slot.words[L.W_CAN_BE_ASKED] = 0
    phases.set_phase(L.PHASE_FINISHING)
    reached("training finished")


def settle():
    """End places whose end can only be seen by checking."""
    for call in settling:
        call()


def around(name, original, phase=None):
    """`original` as a place, in a phase if one is given; its exceptions pass through unchanged."""

    def wrapper(*args, **kwargs):
        place = begin(name)
        token = None if phase is None else phases.enter(phase)
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            phases.leave(token)
            end(place, failed)

    return phases.like(wrapper, original)


def around_method(owner, attribute, name, phase=None):
    phases.replace(owner, attribute, lambda original: around(name, original, phase))


def first_begins(name):
    """A batch is fetched or a backward pass begins before the first step; the token for left()."""
    words = slot.words
    if words[L.W_PHASE] != L.PHASE_FIRST_STEP:
        training_begins()
    if name == BACKWARD:
        _backwards[0] += 1
        if _backwards[0] > BACKWARDS_WITHOUT_STEP:
            # Weights that are changed by hand, or gradients of many batches: both have come so
            # far that the limit for a first step has nothing more to say.
            first_step_over()
            return None
    if name != BATCH and STEP not in _places:
        _places[STEP] = begin(STEP)
    if name in _places:
        return None
    _places[name] = None
    return (name, begin(name))


@slot.harmless
def first_ends(place):
    name, token = place
    end(token)
    if name == BATCH and STEP not in _places:
        _places[STEP] = begin(STEP)


def training_begins():
    """From now on the first step is awaited, by the thread that calls."""
    slot.take_ownership()
    phases.set_phase(L.PHASE_FIRST_STEP)
    end(_places.pop(STEP, None))
    _reset_first()


def first_step_done():
    """The calling thread has done the first step of a training."""
    slot.take_ownership()
    first_step_over()


def first_step_over():
    """The first step is done, or as good as done."""
    phases.set_phase(L.PHASE_TRAIN)
    end(_places.pop(STEP, None))
    _reset_first()


def loss_seen():
    if "first loss" not in _places:
        _places["first loss"] = None
        reached("first loss")


def _reset_first():
    _places.clear()
    _backwards[0] = 0


def listed():
    return [
        {"name": name, "begin": begun, "end": ended, "times": times, "failed": failed, "mark": mark}
        for name, begun, ended, times, failed, mark in list(_entries)
    ]


def _may_speak():
    """Until a thread has trained any may name a place; then only that one, as with phases."""
    return not slot.owner_trains or _thread.get_ident() == slot.owner


def _add(name, mark):
    """A new entry, which replaces the one of this name; None inside a place of this name."""
    name = str(name)[:_LONGEST_NAME]
    times = 1
    for entry in _entries:
        if entry[_NAME] == name:
            if entry[_END] is None:
                return None
            times = entry[_TIMES] + 1
            _entries.remove(entry)
            break
    entry = [name, slot.now_ns() / 1e9, None, times, False, mark]
    _entries.append(entry)
    # A script that marks every step must not push the startup timeline out of the list.
    _forget([one for one in _entries if one[_MARK]], MOST_MARKS)
    _forget([one for one in _entries if one[_END] is not None], MOST - 1)
    return entry


def _forget(entries, most):
    for entry in entries[: max(0, len(entries) - most)]:
        _entries.remove(entry)


def _changed():
    words = slot.words
    words[L.W_MILESTONE] += 1
    words[L.W_LAST_BEAT_NS] = slot.now_ns()
    notes.touch()


def _closing():
    begin("exit")
    notes.flush(now=True)


def _after_fork():
    del _entries[:]
    _reset_first()


notes.parts["milestones"] = listed
slot.on_close.append(_closing)
slot.on_fork_child.append(_after_fork)
