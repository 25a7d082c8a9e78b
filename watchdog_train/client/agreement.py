"""A step at which ranks of several supervisors act on a request, agreed at the training's store.

Ranks of one supervisor share memory (see control.py). Ranks of several meet at the server behind
torch's default store, by a connection of their own: a call of wtrain that hangs must not hold the
lock of the training's. Must never raise into the training, and never wait without a limit.

A rank with the request joins. The last one to join chooses a step, two ahead of its own: ranks that
need each other in every step cannot be past it before they have read it. At that step each arrives
and waits for the others, which costs nothing there: the next step would wait for them, too. The
last one to arrive decides "go". A rank that reads the step too late, or has waited too long,
decides "no". The decision is one key that is written once, so all act or none. All that have
arrived are between the same two collectives, even if they count steps differently. After a "no"
there are two more tries, further ahead: on a GPU the program may run some steps ahead of the work
it has started.

What is left: a rank whose connection breaks after it has arrived cannot learn what was decided, and
does not act. Its network is gone then, and its collectives with it.
"""

import _thread
import os
import sys
import time

WAIT_S = 5.0
"""For the others at the chosen step; the training waits meanwhile."""
CALL_S = 5.0
"""For the server. torch's own timeout does not hold for it: add() to a server that was stopped
(SIGSTOP) had not come back after 110 s with a timeout of 3 s (torch 2.13)."""
PATIENCE_S = 900.0
"""A request that some rank has not got by then is given up."""
AHEAD = (2, 8, 32)
"""Steps from the last one to join to the chosen one, in each try."""
_MOST_PREFIXES = 16
_UNSET = "-"

GO_ON, WAIT, ACT, REFUSE = 0, 1, 2, 3


class Talk:
    """One rank's part in the agreement on one request, whose name is the same on every rank.

    `store` has add(key, number) and compare_set(key, expected, desired), as torch's. Times are
    monotonic seconds.
    """

    def __init__(self, store, name, world, now):
        self._store = store
        self._name = name
        self._world = world
        self._since = now
        self._tried = 0
        self._joined = False
        self._arrived_at = None
        self.chosen = None

    def look(self, step, now):
        """What to do at the end of this step; WAIT: call again before anything else."""
        if self.chosen is None:
            if not self._hears(step):
                return REFUSE if now - self._since > PATIENCE_S else GO_ON
            if step > self.chosen:
                return self._decide("no")
        if step < self.chosen:
            return GO_ON
        if self._arrived_at is None:
            self._arrived_at = now
            if self._store.add(self._key("here"), 1) == self._world:
                return self._decide("go")
        elif now - self._arrived_at >= WAIT_S:
            return self._decide("no")
        found = self._read("all")
        return WAIT if found == _UNSET else self._end(found)

    def _hears(self, step):
        if not self._joined:
            self._joined = True
            if self._store.add(self._key("asked"), 1) != self._world:
                return False
            chosen = str(step + AHEAD[self._tried])
            found = _text(self._store.compare_set(self._key("step"), "", chosen))
        else:
            found = self._read("step")
            if found == _UNSET:
                return False
        self.chosen = int(found)
        return True

    def _decide(self, word):
        return self._end(_text(self._store.compare_set(self._key("all"), "", word)))

    def _end(self, found):
        if found == "go":
            return ACT
        self._tried += 1
        self._joined, self._arrived_at, self.chosen = False, None, None
        return REFUSE if self._tried == len(AHEAD) else GO_ON

    def _read(self, what):
        # A value that is not the expected one is given back; of a key that is not there, this is.
        return _text(self._store.compare_set(self._key(what), _UNSET, _UNSET))

    def _key(self, what):
        return self._name + "/" + str(self._tried) + "/" + what


class _Request:
    __slots__ = ("ended", "number", "talk")

    def __init__(self, number):
        self.number = number
        self.talk = None
        self.ended = False


_requests: dict = {}
_lost = False


def server():
    """Host and port of the server behind torch's default store, None without one."""
    try:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if _lost or c10d is None or not c10d.is_initialized():
            return None
        store = c10d._get_default_store()
        for _ in range(_MOST_PREFIXES):
            inner = getattr(store, "underlying_store", None)
            if inner is None:
                break
            store = inner
        if type(store).__name__ != "TCPStore":
            return None
        return str(store.host), int(store.port)
    except Exception:
        return None


def due(kind, number, step, world, attempt):
    """What to do about this request at the end of this step: GO_ON, ACT or REFUSE.

    `kind` is "save" or "stop"; `number` is the same for all supervisors of the job.
    """
    global _lost
    request = _requests.get(kind)
    chosen = request.talk.chosen if request is not None and request.talk is not None else None
    if request is None or (request.number != number and chosen is None):
        request, chosen = _Request(number), None
        _requests[kind] = request
    if request.ended or (chosen is not None and step < chosen):
        return GO_ON
    place = server()
    if place is None:
        answer = REFUSE
    else:
        name = _namespace(attempt) + "/" + kind + "/" + str(request.number)
        try:
            answer = _within(WAIT_S + CALL_S, _look, request, place, name, world, step)
        except Exception:
            # The thread may never return: nothing is asked there again.
            _lost, answer = True, REFUSE
    if answer in (ACT, REFUSE):
        request.ended, request.talk = True, None
    return answer


def forget():
    """After a fork: the parent's agreements do not concern the child."""
    global _lost
    _requests.clear()
    _lost = False


def _look(request, place, name, world, step):
    """Runs in a thread of its own."""
    if request.talk is None:
        request.talk = Talk(_connect(place), name, world, time.monotonic())
    pause_s = 0.0005
    while True:
        answer = request.talk.look(step, time.monotonic())
        if answer != WAIT:
            return answer
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


def _connect(place):
    import datetime as dt

    limit = dt.timedelta(seconds=CALL_S)
    store = sys.modules["torch.distributed"].TCPStore
    return store(place[0], place[1], None, False, timeout=limit, wait_for_workers=False)


def _namespace(attempt):
    # If torchrun's agents keep the server over a restart, torch itself separates the ranks of
    # two generations by this variable.
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")[:20]
    return "wtrain/" + str(attempt) + "/" + restarted


def _within(limit_s, act, *arguments):
    """The result of `act`; raises TimeoutError if it takes longer than the limit, or fails."""
    answers: list = []
    done = _thread.allocate_lock()
    done.acquire()

    def run():
        try:
            answers.append(act(*arguments))
        except BaseException:
            pass
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    if not done.acquire(True, limit_s) or not answers:
        raise TimeoutError
    return answers[0]


def _text(value):
    return value.decode("ascii") if isinstance(value, bytes) else value
