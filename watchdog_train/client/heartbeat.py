"""A line every N steps on stderr, if the user asks for it; it must never raise."""

import os
import sys
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import slot

# Steps between two lines (0: none), and the monotonic seconds when the attempt was launched.
every = 0
_launched = 0.0
_last: list = []


def configure(environ):
    global every, _launched
    try:
        number, launched = environ.get(L.ENV_HEARTBEAT, "").split()
        every, _launched = int(number), float(launched)
    except ValueError:
        every = 0


def step_done(*_):
    if not every or not slot.supervised:
        return
    try:
        step = L.step_of(slot.words)
        if step is None:
            return
        before = _last[0] if _last and _last[0] <= step else step - 1
        _last[:] = [step]
        if before // every != step // every:
            sys.stderr.write(_line(step))
            sys.stderr.flush()
    except Exception as error:
        slot.raise_if_of_a_signal(error)


def _line(step):
    now, words = time.time(), slot.words
    local = "-" if not words[L.W_LOCAL_RANK] and words[L.W_WORLD_SIZE] > 1 else None
    return "[%s.%03d][+%.3fs][R%d/%d][LR%s][PID:%d] step %d\n" % (
        time.strftime("%H:%M:%S", time.localtime(now)),
        int(now * 1000) % 1000,
        max(0.0, time.monotonic() - _launched),
        max(0, words[L.W_RANK] - 1),
        words[L.W_WORLD_SIZE] or 1,
        local or max(0, words[L.W_LOCAL_RANK] - 1),
        os.getpid(),
        step,
    )


configure(os.environ)
