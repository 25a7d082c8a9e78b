"""Building an object of a user's class as a place: from its base's __init__ until the last is left.

The user's own __init__ is not wrapped: a library may read the frames of it (Lightning's
save_hyperparameters does), and finds only the arguments up to a frame that is not the class's.
So its end is seen by looking whether its code is still on the stack of its thread: when the next
place is entered, else once a second.
"""

import _thread
import sys

from watchdog_train.client import milestones, phases, slot

_MOST_FRAMES = 200
# (token of the place, code of the outermost __init__, thread)
_open: list = []


def around_base(owner, name):
    """Make the building of every object of a subclass of `owner` a place."""
    original = owner.__init__

    def __init__(self, *args, **kwargs):
        try:
            if slot.supervised:
                _begins(type(self), name, sys._getframe(1))
        except Exception:
            pass
        original(self, *args, **kwargs)

    owner.__init__ = phases.like(__init__, original)


def _begins(kind, name, frame):
    codes = [getattr(vars(each).get("__init__"), "__code__", None) for each in kind.__mro__]
    outermost = None
    while frame is not None and frame.f_code in codes:
        outermost = frame.f_code
        frame = frame.f_back
    if outermost is None:
        milestones.reached(name)  # nothing of the user's own is run
        return
    token = milestones.begin(name)
    if token is not None:
        _open.append((token, outermost, _thread.get_ident()))


def settle():
    """End what is no longer on the stack of its thread."""
    for entry in list(_open):
        token, code, thread = entry
        frame = sys._current_frames().get(thread)
        for _ in range(_MOST_FRAMES):
            if frame is None or frame.f_code is code:
                break
            frame = frame.f_back
        if frame is None and entry in _open:
            _open.remove(entry)
            milestones.end(token)


milestones.settling.append(settle)
slot.on_fork_child.append(_open.clear)
