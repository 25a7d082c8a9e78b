"""Under torchrun each rank writes to a stream of its own, so that outputs stay separate.

It runs in the launcher, not in a rank: a rank is started with its streams, as it is by torchrun's
own --redirects. Those files, and --tee, would change what a person sees: no terminal, a prefix that
cannot be empty, no order between stdout and stderr, bars in lines. If the user has asked for
them, nothing is done here.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases


def arm(module):
    text = os.environ.get(L.ENV_RANK_STREAMS)
    # A launcher that a rank has started shares that rank's streams.
    if not text or "LOCAL_RANK" in os.environ:
        return
    import json

    told = json.loads(text)
    if not _writes_to_us(told["own"]):
        return
    places = told["ranks"]

    @phases.replacing(module.SubprocessHandler, "_popen")
    def popen(original, self, *args, **kwargs):
        files = _streams(self, places, args[1] if len(args) > 1 else kwargs.get("env"))
        try:
            self._stdout, self._stderr = files or (self._stdout, self._stderr)
            return original(self, *args, **kwargs)
        finally:
            if files:
                self._stdout = self._stderr = None
                for file in set(files):
                    file.close()


def _writes_to_us(own):
    """Not behind a pipe or redirection of the user's (`torchrun ... | tee log` in a script)."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        found = os.fstat(descriptor)
        if [found.st_dev, found.st_ino] != own[name]:
            return False
    return True


def _streams(handler, places, env):
    """Files for stdout and stderr of a rank about to start; None where it shares those of all."""
    try:
        if handler._stdout is not None or handler._stderr is not None:
            return None
        number = getattr(handler, "local_rank_id", None)
        place = places[int(env["LOCAL_RANK"]) if number is None else number]
        if "output" in place:
            both = _open(place["output"])
            return both, both
        out = _open(place["stdout"])
        try:
            return out, _open(place["stderr"])
        except BaseException:
            out.close()
            raise
    except Exception as error:
        notes.note("a rank has no stream of its own: " + type(error).__name__)
        return None


def _open(path):
    if sys.platform == "win32":
        raise OSError(path)
    # Without a controlling terminal the launcher would get one by a plain open().
    flags = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags | os.O_WRONLY)
    if os.isatty(descriptor):
        os.close(descriptor)
        descriptor = os.open(path, flags | os.O_RDWR)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb", 0)
