"""torch.compile must find as many graph breaks with our wrappers as without them.

It must import nothing of torch itself: dynamo costs seconds, and only a script that compiles
pays for it.
"""

import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases

_wrappers: list = []
_tokens: list = []


def remember(wrapper):
    """A wrapper that dynamo must not look into."""
    _wrappers.append(wrapper)
    return wrapper


def arm(module):
    """torch._dynamo has just been imported."""
    skip_wrappers()
    handler = module.callback.callback_handler
    handler.register_start_callback(_compile_begins)
    handler.register_end_callback(_compile_ends)


def skip_wrappers():
    """Tell dynamo to leave our frames alone, as it leaves the functions of torch alone."""
    try:
        decorators = sys.modules["torch._dynamo.decorators"]
        while _wrappers:
            decorators.skip(_wrappers.pop())
    except Exception as error:
        notes.note("torch.compile may see our wrappers: " + type(error).__name__)


def _compile_begins(*args):
    _tokens.append(phases.enter(L.PHASE_COMPILE))


def _compile_ends(*args):
    if _tokens:
        phases.leave(_tokens.pop())
