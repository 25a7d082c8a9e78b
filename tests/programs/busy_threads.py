"""Two threads that run Python all the time, and a main thread that waits for them."""

import contextlib
import random
import threading

import watchdog_train as wt


def fall(depth):
    return depth and fall(depth - 1)


def count(depth):
    if depth:
        yield from count(depth - 1)
    yield depth


def call():
    while True:
        fall(random.randrange(30))
        [sum(range(size)) for size in range(7)]


def unwind():
    while True:
        with contextlib.suppress(ZeroDivisionError):
            for depth in count(10):
                1 / fall(2 * depth)


wt.beat()
threads = [threading.Thread(target=target, daemon=True) for target in (call, unwind)]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
