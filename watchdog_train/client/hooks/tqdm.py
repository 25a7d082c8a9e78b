"""Progress bars: a sign of life, and the length of a training by the bar that counts its steps.

A tick counts only when a bar has moved. What tqdm's monitor thread redraws does not count: that
thread is alive when training is not.

A bar says little about what it counts, so its length is believed only while all of this holds;
else it stays unknown, and a length that turns out to be wrong is taken back for good:
- it stands alone: a bar inside another one counts an epoch, not the training;
- it counts a range, or is counted by hand: a bar around a DataLoader ends with the epoch, and so
  does one that is as long as a DataLoader of this process;
- it moves by one for each optimizer step, and has counted every step of this process. Where several
  optimizers take turns, as in a GAN, it moves by one for each round of them.
"""

import _thread
import _weakref
import math
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import phases, slot

_MOST_BARS = 256
_STEPS = 8
_SLACK = 2
_MOST = 64

_MOST_EACH = 32

_samplers: list = []
_optimizers: set = set()
_listening = None
_loaders_begun = 0
_seen: dict = {}
_watched: dict = {}
_rounds: dict = {}
_chosen = None
_over = False


def arm(_):
    bar = sys.modules["tqdm.std"].tqdm
    bar.refresh = phases.before(_tick, bar.refresh)
    bar.close = phases.before(_tick, bar.close)  # its last count is drawn without a refresh


def _tick(bar, *_args, **_kwargs):
    if bar.disable:
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
            moved(bar)


def loader_begins(_result, iterator, *_args, **_kwargs):
    """A DataLoader goes through its data once: its length is an epoch's."""
    global _loaders_begun
    _loaders_begun += 1
    sampler = iterator._index_sampler
    living = [ref for ref in _samplers if ref() is not None and ref() is not sampler]
    _samplers[:] = [*living[-_MOST:], _weakref.ref(sampler)]


def moved(bar):
    """A bar has moved: find out whether it is the training's, or whether it still is."""
    global _chosen
    words = slot.words
    steps = words[L.W_OPTIMIZER_STEPS]
    if _over or not steps:
        return
    key = (id(bar), bar.start_t)
    if not words[L.W_BAR_EACH] and _chosen is None:
        _look_for_rounds(bar, key, steps, words)
    steps //= words[L.W_BAR_EACH] or 1
    counts = _counts_steps(bar, key, steps)
    if _chosen is not None and counts != (key == _chosen):
        # It no longer keeps pace, or another bar after it does: it was one loop of several.
        _give_up(words)
    elif counts:
        first = _first(bar)
        offset = int(bar.n) + first - steps
        resumed = words[L.W_RESUMED_STEP] - 1
        alone = offset >= -_SLACK and not 0 < resumed != offset
        if alone and (_chosen is not None or not _is_an_epoch(bar.total)):
            _chosen = key
            words[L.W_BAR_OFFSET] = max(offset, 0) + 1
            words[L.W_BAR_TOTAL] = bar.total + first


def _look_for_rounds(bar, key, steps, words):
    """Whether each move of the bar is a round of several optimizers; two of them must be seen.

    A bar that counts epochs moves by many steps, too: then a DataLoader begins with each.
    """
    global _listening
    if key not in _rounds and len(_rounds) >= _MOST:
        _rounds.clear()
    n, since, begun = _rounds.setdefault(key, (bar.n, steps, _loaders_begun))
    moves, done = bar.n - n, steps - since
    if moves < 2 or not 2 * moves <= done <= _MOST_EACH * moves:
        return
    if _listening is None:
        _listening = phases.after_steps(lambda optimizer, *_: _optimizers.add(id(optimizer)))
    elif moves >= _STEPS:
        _listening.remove()
        _rounds[key] = (math.inf, 0, 0)  # judged: it has never moved on from here
        if done % moves == 0 and len(_optimizers) > 1 and _loaders_begun - begun < moves:
            words[L.W_BAR_EACH] = done // moves
            _watched.clear()


def _give_up(words):
    global _over
    _over = True
    words[L.W_BAR_OFFSET] = words[L.W_BAR_TOTAL] = 0
    _watched.clear()


def _counts_steps(bar, key, steps):
    """Whether it is the outermost bar and has moved by one for each of the newest steps."""
    total = bar.total
    if type(total) is not int or not 1 < total < 1 << 40 or not 0 <= bar.n <= total:
        return False
    if bar.pos != 0 or not (bar.iterable is None or type(bar.iterable) is range):
        return False
    if key not in _watched:
        if len(_watched) >= _MOST:
            _watched.clear()
        _watched[key] = (bar.n, steps, False)
    n, since, counts = _watched[key]
    done = steps - since
    # Mixed precision leaves out a step now and then.
    if abs(bar.n - n - done) > _SLACK + done // 16:
        _watched[key] = (bar.n, steps, False)
        return False
    if done >= _STEPS and not counts:
        _watched[key] = (n, since, True)
    elif done >= 16 * _STEPS:
        _watched[key] = (bar.n, steps, True)
    return counts or done >= _STEPS


def _first(bar):
    """Where its count begins: tqdm counts range(500, 900) from 0 to 400."""
    counted = bar.iterable
    if counted is None or counted.step != 1 or bar.initial or bar.total != len(counted):
        return 0
    return max(counted.start, 0)


def _is_an_epoch(total):
    for reference in _samplers:
        try:
            if len(reference()) == total:
                return True
        except TypeError:  # it is gone, or has no length
            continue
    return False
