"""Progress of Keras: the list of callbacks that every fit and evaluation makes, on each backend.

It must not look at the logs: reading them may wait for the device.
"""

import _thread
import sys

from watchdog_train.client import heartbeat, milestones, phases, slot
from watchdog_train.client import layout as L  # noqa: N812

_evaluations: list = []


def arm(keras):
    lists = keras.callbacks.CallbackList
    acts = {"train_begin": _training_begins, "train_batch_end": _step_done}
    for kind in ("test_", "predict_"):
        acts[kind + "begin"], acts[kind + "end"] = _evaluation_begins, _evaluation_ends
        acts[kind + "batch_end"] = _batch_done
    for name, act in acts.items():
        setattr(lists, "on_" + name, phases.before(act, getattr(lists, "on_" + name)))


def _training_begins(*_args, **_kwargs):
    milestones.training_begins()


def _step_done(*_args, **_kwargs):
    words = slot.words
    words[L.W_OPTIMIZER_STEPS] += 1
    words[L.W_LAST_BEAT_NS] = slot.now_ns()
    if slot.deciding != _thread.get_ident():
        slot.take_decision()
    if words[L.W_PHASE] != L.PHASE_TRAIN:
        milestones.first_step_done()
    heartbeat.step_done()


def _batch_done(*_args, **_kwargs):
    slot.words[L.W_BATCHES] += 1


def _evaluation_begins(*_args, **_kwargs):
    _evaluations.append(phases.enter(L.PHASE_EVAL))


def _evaluation_ends(*_args, **_kwargs):
    phases.leave(_evaluations.pop())


def tensorflow(_):
    """Batches of tf.data in a loop by hand; Keras reports those of `fit`."""
    iterator = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
    iterator.__next__ = phases.after(iterator.__next__, _batch_done)
