"""Progress of PyTorch: optimizer steps, backward passes, batches, saves and loads.

It must change no result and add no graph break; every wrapper keeps the name it is pickled by.
"""

import _thread
import sys

from watchdog_train.client import (
    exceptions,
    heartbeat,
    milestones,
    notes,
    phases,
    pulse,
    saves,
    settings,
    slot,
)
from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client.hooks import tqdm

_BEFORE_TRAINING = frozenset(
    (L.PHASE_UNKNOWN, L.PHASE_STARTUP, L.PHASE_FIRST_STEP, L.PHASE_IDLE, L.PHASE_FINISHING)
)
_BEFORE_FIRST_STEP = frozenset((L.PHASE_UNKNOWN, L.PHASE_STARTUP, L.PHASE_FIRST_STEP))
_now_ns = slot.now_ns
_ident = _thread.get_ident
_STEPS = L.W_OPTIMIZER_STEPS
_BATCHES = L.W_BATCHES
_BACKWARDS = L.W_MICRO_BATCHES
_LAST = L.W_LAST_BEAT_NS
_BATCH = L.W_BATCH_NS
_BACKWARD = L.W_BACKWARD_NS
_BACKWARD_END = L.W_BACKWARD_END_NS
_PHASE = L.W_PHASE


def arm(torch):
    slot.open_slot()
    slot.hear_of_the_end()
    exceptions.arm()
    pulse.allow_ptrace()
    try:
        notes.arm_each(lambda part: part(torch), (_steps, _backward, _batches, _workers, _saves))
    finally:
        settings.apply(torch)
        if "torch._dynamo" in sys.modules:
            phases.skip_wrappers()


def _steps(torch):
    def step_done(optimizer, args, kwargs):
        try:
            words = slot.words
            words[_STEPS] += 1
            words[_LAST] = _now_ns()
            if slot.deciding != _ident():
                slot.take_decision()
            if words[_PHASE] in _BEFORE_TRAINING:
                milestones.first_step_done()
        except Exception:
            pass

    phases.after_steps(step_done)
    if heartbeat.every:
        phases.after_steps(heartbeat.step_done)


# The two below ask for the phase in place: a function for it costs every step 0.2 us, twice.


def _backward(torch):
    for name in ("backward", "grad"):  # a loop by hand may ask for gradients only
        phases.replace(torch.autograd, name, _counted_backward)


def _counted_backward(original):
    def backward(*args, **kwargs):
        place = None
        try:
            words = slot.words
            words[_BACKWARD] = _now_ns()
            if words[_PHASE] in _BEFORE_FIRST_STEP:
                place = milestones.first_begins(milestones.BACKWARD)
        except Exception:
            pass
        try:
            result = original(*args, **kwargs)
        finally:
            if place is not None:
                milestones.first_ends(place)
        try:
            words = slot.words
            words[_BACKWARDS] += 1
            words[_BACKWARD_END] = _now_ns()
            if slot.deciding != _ident():
                slot.take_decision()
        except Exception:
            pass
        return result

    return phases.unseen_by_dynamo(phases.like(backward, original))


def _batches(torch):
    iterator = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    original = iterator.__next__

    def __next__(self):
        place = None
        try:
            if slot.words[_PHASE] in _BEFORE_FIRST_STEP:
                place = milestones.first_begins(milestones.BATCH)
        except Exception:
            pass
        try:
            batch = original(self)
        finally:
            if place is not None:
                milestones.first_ends(place)
        try:
            words = slot.words
            words[_BATCHES] += 1
            words[_BATCH] = _now_ns()
        except Exception:
            pass
        return batch

    iterator.__next__ = phases.unseen_by_dynamo(phases.like(__next__, original))
    made = phases.after(iterator.__init__, tqdm.loader_begins)
    iterator.__init__ = phases.unseen_by_dynamo(made)


def _workers(torch):
    loader = sys.modules["torch.utils.data.dataloader"]
    milestones.around_method(
        loader._MultiProcessingDataLoaderIter, "__init__", "start DataLoader workers"
    )
    module = sys.modules["torch.utils.data._utils.worker"]
    code = module._worker_loop.__code__
    position = code.co_varnames[: code.co_argcount].index("worker_id")

    @phases.replacing(module, "_worker_loop")
    def worker_loop(original, *args, **kwargs):
        try:
            number = kwargs["worker_id"] if "worker_id" in kwargs else args[position]
            slot.become_worker(int(number))
        except Exception:
            pass
        try:
            return original(*args, **kwargs)
        finally:
            # A child of multiprocessing ends by os._exit.
            slot.unlink()


def _saves(torch):
    serialization = sys.modules["torch.serialization"]
    save = phases.unseen_by_dynamo(saves.recorded("torch", torch.save, position=1, name="f"))
    load = phases.unseen_by_dynamo(phases.around_load(torch.load))
    for module in (torch, serialization):
        module.save = save  # type: ignore[union-attr]
        module.load = load  # type: ignore[union-attr]


def tensorboard(module):
    """Opening a writer is a place: its directory may be on storage that does not answer."""
    milestones.around_method(module.SummaryWriter, "__init__", "SummaryWriter")


def dynamo(module):
    phases.skip_wrappers()
    tokens = []  # type: list
    handler = module.callback.callback_handler
    handler.register_start_callback(lambda *_: tokens.append(phases.enter(L.PHASE_COMPILE)))
    handler.register_end_callback(lambda *_: phases.leave(tokens.pop()) if tokens else None)
