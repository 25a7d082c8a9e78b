"""The API for training scripts: all of it does nothing outside a supervised run.

It must import nothing when it is imported: the functions are fetched on first use, and it has
to parse on Python 3.8, because the training may run on another interpreter than wtrain.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_train.client.beat import (
        attempt,
        beat,
        expect,
        mark,
        phase,
        resume_path,
        should_stop,
    )

__version__ = "0.1.0"
__all__ = (
    "__version__",
    "attempt",
    "beat",
    "expect",
    "mark",
    "phase",
    "resume_path",
    "should_stop",
)


def __getattr__(name):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Fetch an API function, once."""
    if name not in __all__:
        raise AttributeError("module 'watchdog_train' has no attribute " + repr(name))
    from watchdog_train.client import beat as api

    value = getattr(api, name)
    globals()[name] = value
    return value
