"""Progress of TensorFlow: batches of tf.data in a loop by hand. `fit` is told by Keras."""

import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import phases, slot


def arm(_tensorflow):
    """Hook into a TensorFlow that has just been imported."""
    iterator = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
    original = iterator.__next__

    def __next__(self):
        batch = original(self)
        slot.words[L.W_BATCHES] += 1
        return batch

    iterator.__next__ = phases.like(__next__, original)
