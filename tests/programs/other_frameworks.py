"""Trainings without torch: python other_frameworks.py KIND. The first attempt hangs in the middle.

Each makes STEPS steps, an evaluation and a save before the one that never ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np

KIND = sys.argv[1]
STEPS = 40
STEP_S = 0.5
FIRST = not os.path.exists("hung")
done: list[None] = []


def hang() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def step_ends() -> None:
    """A step of half a second; the second attempt is as short as the first is long."""
    done.append(None)
    time.sleep(STEP_S if FIRST else 0.0)
    if len(done) == STEPS and FIRST:
        open("hung", "w").close()
        hang()


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((count, 8), dtype=np.float32)
    return x, x.sum(1, keepdims=True)


def fit() -> None:
    """On the backend that KERAS_BACKEND names."""
    import keras

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step_ends()

    x, y = examples(480)
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    save = keras.callbacks.ModelCheckpoint("model.keras")
    half = (x[:64], y[:64])
    callbacks = [Slow(), save]
    model.fit(x, y, batch_size=16, epochs=2, validation_data=half, verbose=2, callbacks=callbacks)


def tape() -> None:
    """It prints nothing: only batches tell."""
    import tensorflow as tf

    weights = tf.Variable(tf.zeros([8, 1]))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as recorded:
            loss = tf.reduce_mean((x @ weights - y) ** 2)
        weights.assign_sub(0.01 * recorded.gradient(loss, weights))
        return loss

    checkpoint = tf.train.Checkpoint(weights=weights)
    for number, (x, y) in enumerate(tf.data.Dataset.from_tensor_slices(examples(960)).batch(16)):
        step(x, y)
        if number == STEPS // 2:
            checkpoint.save("checkpoints/tape")
        step_ends()


def jax() -> None:
    """It prints each step: only output tells."""
    from jax import grad, jit
    from jax import numpy as jnp

    x, y = examples(64)
    step = jit(lambda w: w - 0.01 * grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))
    weights = jnp.zeros((8, 1))
    for number in range(STEPS + 5):
        weights = step(weights)
        print("step", number, float(weights[0, 0]), flush=True)
        step_ends()


def partial_fit() -> None:
    from sklearn.linear_model import SGDRegressor

    x, y = examples(64)
    model = SGDRegressor()
    for number in range(STEPS + 5):
        model.partial_fit(x, y[:, 0])
        print("step", number, model.score(x, y[:, 0]), flush=True)
        step_ends()


globals()[KIND]()
print("finished", KIND, flush=True)
