"""Which phase the process is in: entered and left around wrapped calls; it must never raise."""

import _thread
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, resume, slot

# leave() returns to this phase if its phase was entered while idle. Set while a task of a service
# runs: until it does what belongs to a training, it may be none and wait for anything.
after_idle = None  # type: int | None
_unseen: list = []


@slot.harmless
def set_phase(number):
    words = slot.words
    if words[L.W_PHASE] != number:
        words[L.W_PHASE] = number
        words[L.W_PHASE_ENTRIES] += 1


@slot.harmless
def enter(number):
    """Enter a phase for a while; the token for leave(), None when there is nothing to restore.

    Only the thread that trains has a phase: a save in the background must not hide that the
    training makes no progress.
    """
    if not slot.supervised or _thread.get_ident() != slot.owner:
        return None
    previous = slot.words[L.W_PHASE]
    if previous == L.PHASE_IDLE and after_idle is not None:
        previous = after_idle
    set_phase(number)
    return (previous, slot.generation)


@slot.harmless
def leave(token):
    # A process forked in between has phases of its own.
    if token is not None and token[1] == slot.generation:
        set_phase(token[0])


def around(number, original):
    """`original` with the phase entered around it; its exceptions pass through unchanged."""

    def wrapper(*args, **kwargs):
        token = enter(number)
        try:
            return original(*args, **kwargs)
        finally:
            leave(token)

    return like(wrapper, original)


def before(act, original):
    """`original`, and `act` with its arguments before it; an error of `act` becomes a note."""

    def wrapper(*args, **kwargs):
        guarded(act, *args, **kwargs)
        return original(*args, **kwargs)

    return like(wrapper, original)


def after(original, act):
    """`original`, and `act` with its result and arguments after it."""

    def wrapper(*args, **kwargs):
        result = original(*args, **kwargs)
        guarded(act, result, *args, **kwargs)
        return result

    return like(wrapper, original)


def guarded(act, *args, **kwargs):
    """Call it in a supervised run; an error becomes a note."""
    try:
        if slot.supervised:
            act(*args, **kwargs)
    except Exception as error:
        slot.raise_if_of_a_signal(error)
        why = type(error).__name__ + ": " + str(error)
        notes.note("the hook " + act.__module__ + "." + act.__name__ + " failed: " + why)


def around_load(original):
    """`original`, which loads a file, in phase load; but data read during training is training."""

    def wrapper(*args, **kwargs):
        token = None
        # torch.load calls it f, safetensors filename.
        read = resume.load_begins(args[0] if args else kwargs.get("f") or kwargs.get("filename"))
        try:
            if slot.supervised and slot.words[L.W_PHASE] not in (L.PHASE_TRAIN, L.PHASE_EVAL):
                token = enter(L.PHASE_LOAD)
        except Exception:
            pass
        try:
            result = original(*args, **kwargs)
        finally:
            leave(token)
        resume.load_ended(read)
        return result

    return like(wrapper, original)


def like(wrapper, original):
    """Give a wrapper the identity of what it wraps, so that it is pickled by the same name."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        try:
            setattr(wrapper, name, getattr(original, name))
        except Exception:
            pass
    try:
        wrapper.__dict__.update(original.__dict__)
    except Exception:
        pass
    wrapper.__wrapped__ = original
    return wrapper


def replace(owner, name, wrap):
    """Put wrap(original) in the place of owner.name; a class method stays one."""
    original = getattr(owner, name)
    if isinstance(vars(owner).get(name), classmethod):
        setattr(owner, name, classmethod(wrap(original.__func__)))
    else:
        setattr(owner, name, wrap(original))


def replacing(owner, name):
    """A decorator: its function stands in for owner.name, which it gets as its first argument."""

    def decorate(act):
        def wrap(original):
            def wrapper(*args, **kwargs):
                return act(original, *args, **kwargs)

            return like(wrapper, original)

        replace(owner, name, wrap)

    return decorate


def unseen_by_dynamo(wrapper):
    """A wrapper that torch.compile must not trace: it would find another graph break."""
    _unseen.append(wrapper)
    return wrapper


def after_steps(act):
    """Call it after each optimizer step; returns the handle that removes it."""
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute
    return module.register_optimizer_step_post_hook(unseen_by_dynamo(act))


def skip_wrappers():
    """Make dynamo leave our frames alone, as it leaves the functions of torch alone.

    Only once it is imported: that costs seconds, and only a script that compiles pays for it.
    """
    try:
        decorators = sys.modules["torch._dynamo.decorators"]
        while _unseen:
            decorators.skip(_unseen.pop())
    except Exception as error:
        notes.note("torch.compile may see our wrappers: " + type(error).__name__)
