"""What a training script may say and ask: beat, phase, expect, mark, resume_path, attempt, stop.

Every function does nothing outside a supervised run, and none can raise because of wtrain.
"""

import _thread

from watchdog_train.client import control, heartbeat, milestones, notes, phases, slot
from watchdog_train.client import layout as L  # noqa: N812

_now_ns = slot.now_ns
_ident = _thread.get_ident
_BEATS = L.W_BEATS
_LAST = L.W_LAST_BEAT_NS
_PHASE = L.W_PHASE
_BEFORE_TRAINING = (L.PHASE_UNKNOWN, L.PHASE_STARTUP, L.PHASE_FIRST_STEP)
_LONGEST_EXPECTED_S = 7 * 24 * 3600.0


def beat(step=None, total_steps=None):
    """Tell that the training is alive.

    Args:
        step: number of steps done so far, for a loop whose steps wtrain cannot see.
        total_steps: how many there will be.
    """
    words = slot.words
    try:
        words[_BEATS] += 1
        words[_LAST] = _now_ns()
        if slot.deciding != _ident():
            slot.take_decision()
        if words[_PHASE] in _BEFORE_TRAINING:
            milestones.first_step_over()
        if step is not None:
            number = int(step) + 1
            if not words[L.W_FIRST_STEP]:
                words[L.W_FIRST_STEP] = number
            words[L.W_FRAMEWORK_STEP] = number
            heartbeat.step_done()
        if total_steps is not None:
            words[L.W_TOTAL_STEPS] = int(total_steps)
    except Exception as error:
        slot.raise_if_of_a_signal(error)


class phase:  # noqa: N801 - reads as a word in `with phase("eval"):`
    """Say what the training is busy with, as a call or for the length of a `with` block.

    Args:
        name: one of startup, download, load, compile, first_step, train, eval, checkpoint, idle,
            finishing. Another name counts as "unknown" and is noted.
    """

    __slots__ = ("_token",)

    def __init__(self, name):
        known = isinstance(name, str) and name in L.PHASES
        number = L.PHASES.index(name) if known else L.PHASE_UNKNOWN
        if number == L.PHASE_UNKNOWN and slot.supervised:
            notes.note("phase() was given an unknown name: " + repr(name)[:60])
        self._token = phases.enter(number)

    def __enter__(self):
        return self

    def __exit__(self, *details):
        phases.leave(self._token)
        return False


@slot.harmless
def expect(seconds):
    """Announce silence: for so many seconds from now nothing will be heard, and that is fine."""
    if slot.supervised:
        wanted = min(max(float(seconds), 0.0), _LONGEST_EXPECTED_S)
        slot.words[L.W_EXPECT_UNTIL_NS] = _now_ns() + int(wanted * 1e9)


@slot.harmless
def mark(name):
    """Tell that a milestone is reached; it counts as a sign of life."""
    if slot.supervised:
        slot.words[_BEATS] += 1
        milestones.reached(name, mark=True)


def resume_path():
    """Path of the checkpoint to resume from, None when there is none."""
    try:
        slot.words[L.W_LOAD_BEGUN] |= 3 if slot.resume_from else 2
    except Exception:
        pass
    return slot.resume_from


def attempt():
    """Number of this attempt, counted from 1; 0 outside a supervised run."""
    return slot.attempt


def should_stop():
    """Whether the loop should save and end; ask once a step, on every rank."""
    try:
        if not slot.supervised:
            return False
        words = slot.words
        if not words[L.W_CAN_BE_ASKED] & 2 and control.can_be_asked():
            words[L.W_CAN_BE_ASKED] |= 2
        return bool(control.stop_due(max(words[L.W_OPTIMIZER_STEPS], words[L.W_FRAMEWORK_STEP])))
    except Exception:
        return False
