"""Waits for locks, queues and semaphores, in one process and between several."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

from say import SLEEPS, asleep, child, main, program, thread, until, waits

C = ctypes.CDLL(None)
FORK = multiprocessing.get_context("fork")


@program()
def lock_taken_twice():
    lock = threading.Lock()
    lock.acquire()
    waits("mutex", address=0, proven=True)
    lock.acquire()  # here


@program(2, lines=True)
def two_locks_in_two_orders():
    one, other = threading.Lock(), threading.Lock()
    one.acquire()

    def turn():
        other.acquire()
        waits("mutex", address=0, proven=True)
        one.acquire()  # here

    thread(turn)
    until(other.locked)
    waits("mutex", address=0, proven=True)
    other.acquire()  # here


@program()
def lock_that_a_signal_handler_releases():
    """Nobody is left in the process, and yet it goes on when somebody tells it to."""
    lock = threading.Lock()
    lock.acquire()
    signal.signal(signal.SIGUSR1, lambda *_: lock.release())
    waits("mutex", address=0)
    lock.acquire()  # here


@program()
def lock_for_some_time():
    lock = threading.Lock()
    lock.acquire()
    waits("mutex", address=0, timed=True)
    lock.acquire(timeout=500)  # here


@program(2)
def lock_of_a_thread_that_sleeps():
    lock = threading.Lock()

    def hold():
        with lock:
            waits("sleep", left_s=600, **SLEEPS)
            time.sleep(600)  # here

    thread(hold)
    until(lock.locked)
    waits("mutex", address=0)
    lock.acquire()  # here


@program(2)
def thread_that_is_joined():
    def work():
        waits("running")
        while True:  # here
            pass

    waits("mutex", address=0)
    thread(work).join()


@program(2)
def queue_whose_producer_sleeps():
    items = queue.Queue()

    def produce():
        waits("sleep", left_s=600, **SLEEPS)
        time.sleep(600)  # here

    thread(produce)
    waits("mutex", address=0)
    items.get()


@program(2)
def future_of_a_pool():
    def work():
        waits("sleep", left_s=600, **SLEEPS)
        time.sleep(600)  # here

    future = ThreadPoolExecutor(1).submit(work)
    waits("mutex", address=0)
    future.result()


@program(2, lines=True)
def interpreter_lock_held_in_native_code():
    """A library that keeps the GIL sleeps: every other thread asks for it over and over."""

    def run():
        waits("mutex", address=0, timed=True)
        while True:  # here
            pass

    thread(run)
    time.sleep(0.1)
    waits("sleep", left_s=600, timed=True, owns_gil=True)
    ctypes.PyDLL(None).sleep(600)  # here


def mutex(kind: int = 0, *, robust: bool = False, shared: bool = False, where=None):
    """A mutex of the C library and its address."""
    settings = ctypes.create_string_buffer(8)
    C.pthread_mutexattr_init(settings)
    C.pthread_mutexattr_settype(settings, kind)
    C.pthread_mutexattr_setrobust(settings, int(robust))
    C.pthread_mutexattr_setpshared(settings, int(shared))
    made = where if where is not None else ctypes.create_string_buffer(64)
    C.pthread_mutex_init(made, settings)
    return made, ctypes.addressof(made)


def held(made) -> int:
    """A thread that holds it and sleeps; its number."""
    tids = []

    def hold():
        C.pthread_mutex_lock(made)
        tids.append(threading.get_native_id())
        time.sleep(600)

    thread(hold)
    until(lambda: tids)
    return tids[0]


@program()
def native_mutex():
    made, address = mutex()
    waits("mutex", address=address, owner_tid=held(made), owner_lives=True)
    C.pthread_mutex_lock(made)  # here


@program()
def native_mutex_that_checks_errors():
    made, address = mutex(2)
    waits("mutex", address=address, owner_tid=held(made), owner_lives=True)
    C.pthread_mutex_lock(made)  # here


@program()
def native_mutex_that_is_robust():
    """Its word is the number of its owner."""
    made, address = mutex(robust=True)
    waits("mutex", address=address, owner_tid=held(made), owner_lives=True)
    C.pthread_mutex_lock(made)  # here


@program()
def native_mutex_taken_twice():
    made, address = mutex()
    C.pthread_mutex_lock(made)
    tid = threading.get_native_id()
    waits("mutex", address=address, owner_tid=tid, owner_lives=True, proven=True)
    C.pthread_mutex_lock(made)  # here


@program(2)
def native_mutex_held_at_fork():
    made, address = mutex()
    tid = held(made)

    def lock():
        waits("mutex", address=address, owner_tid=tid, owner_lives=False, proven=True)
        C.pthread_mutex_lock(made)  # here

    process = child(lock)
    waits("child", children=[process])
    os.waitpid(process, 0)  # here


@program()
def native_mutex_of_a_process_that_died():
    """In memory that both had; not robust, so nobody is told."""
    memory = mmap(-1, 4096)
    made, _ = mutex(shared=True, where=(ctypes.c_char * 64).from_buffer(memory))
    dead = child(lambda: C.pthread_mutex_lock(made))
    os.waitpid(dead, 0)
    waits("shared_semaphore", path="/dev/zero (deleted)", owner=dead)
    C.pthread_mutex_lock(made)  # here


def semaphore_path() -> str:
    """Of the semaphores of multiprocessing that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return next(line.split(None, 5)[5].strip() for line in maps if "/dev/shm/" in line)


@program()
def shared_semaphore():
    semaphore = FORK.Semaphore(0)
    other = asleep()
    waits("shared_semaphore", path=semaphore_path(), others=[other])
    semaphore.acquire()  # here


@program()
def shared_semaphore_of_nobody_else():
    semaphore = FORK.Semaphore(0)
    waits("shared_semaphore", path=semaphore_path())
    semaphore.acquire()  # here


@program()
def queue_of_processes():
    """The writing end is the parent's own as well; a feeder of its own would fill it."""
    items = FORK.Queue()
    other = asleep()
    waits("pipe", call="read", others=[os.getpid(), other])
    items.get()


@program(2)
def queue_of_processes_whose_feeder_is_stuck():
    """The reader of a full pipe sleeps: the thread that feeds it waits, the main one does not."""
    items = FORK.Queue()
    reader = asleep(items._writer.fileno())
    items._reader.close()

    def tell():
        until(lambda: items._thread is not None)
        waits("pipe", tid=items._thread.native_id, call="write", others=[reader])

    thread(tell)
    items.put(bytes(1 << 20))
    waits("mutex", address=0)
    items._thread.join()


if __name__ == "__main__":
    main()
