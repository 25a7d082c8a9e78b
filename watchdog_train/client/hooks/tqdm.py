"""Progress bars as a sign of life, and of how far it is: a tick counts only when a bar has moved.

It must not count what tqdm's monitor thread redraws: that thread is alive when training is not.
"""

import _thread
import sys

from watchdog_train.client import bars, phases, slot
from watchdog_train.client import layout as L  # noqa: N812

_MOST_BARS = 256
_seen: dict = {}


def arm(_):
    """Hook into a tqdm that has just been imported."""
    bar = sys.modules["tqdm.std"].tqdm
    original = bar.refresh

    def refresh(self, *args, **kwargs):
        try:
            _tick(self)
        except Exception:
            pass
        return original(self, *args, **kwargs)

    bar.refresh = phases.like(refresh, original)
    close = bar.close

    def closing(self, *args, **kwargs):
        # Its last count is drawn without a refresh.
        try:
            _tick(self)
        except Exception:
            pass
        return close(self, *args, **kwargs)

    bar.close = phases.like(closing, close)


def _tick(bar):
    if not slot.supervised or bar.disable:
        return
    monitor = getattr(type(bar), "monitor", None)
    if monitor is not None and getattr(monitor, "ident", None) == _thread.get_ident():
        return
    key, n = id(bar), bar.n
    before = _seen.get(key)
    if before is None and len(_seen) >= _MOST_BARS:
        _seen.clear()
    _seen[key] = n
    # A new bar at the same address starts below the old one; that is no tick yet.
    if n > (bar.initial if before is None else before):
        slot.words[L.W_TICKS] += 1
        slot.words[L.W_LAST_BEAT_NS] = slot.now_ns()
        if _thread.get_ident() == slot.owner:
            bars.moved(bar)
