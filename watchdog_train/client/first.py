"""The way from a set-up training to its first step: first batch, first backward pass, first step.

It must never raise, and costs nothing once training is under way: the hooks ask for it only in
the phases before.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, phases, slot

BATCH = "first batch"
BACKWARD = "first backward pass"
STEP = "first step"
BACKWARDS_WITHOUT_STEP = 8

# What this training has been through: name -> token of the place, or None once it was left.
_places: dict = {}
_backwards = [0]


def entered(name):
    """A batch is fetched or a backward pass begins before the first step; the token for left()."""
    words = slot.words
    if words[L.W_PHASE] != L.PHASE_FIRST_STEP:
        training_begins()
    if name == BACKWARD:
        _backwards[0] += 1
        if _backwards[0] > BACKWARDS_WITHOUT_STEP:
            # Weights that are changed by hand, or gradients of many batches: both have come so
            # far that the limit for a first step has nothing more to say.
            over()
            return None
    if name != BATCH and STEP not in _places:
        _places[STEP] = milestones.begin(STEP)
    if name in _places:
        return None
    _places[name] = None
    return (name, milestones.begin(name))


def left(place):
    """The batch is there, or the backward pass has ended."""
    try:
        name, token = place
        milestones.end(token)
        if name == BATCH and STEP not in _places:
            _places[STEP] = milestones.begin(STEP)
    except Exception:
        pass


def training_begins():
    """From now on the first step is awaited, by the thread that calls."""
    slot.take_ownership()
    phases.set_phase(L.PHASE_FIRST_STEP)
    milestones.end(_places.pop(STEP, None))
    _begin_anew()


def step_done():
    """The calling thread has done the first step of a training."""
    slot.take_ownership()
    over()


def over():
    """The first step is done, or as good as done."""
    phases.set_phase(L.PHASE_TRAIN)
    milestones.end(_places.pop(STEP, None))
    _begin_anew()


def loss_seen():
    """A loss has been logged."""
    if "first loss" not in _places:
        _places["first loss"] = None
        milestones.reached("first loss")


def _begin_anew():
    _places.clear()
    _backwards[0] = 0


slot.on_fork_child.append(_begin_anew)
