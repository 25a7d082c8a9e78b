"""Waits for children, sleeps, timers, and what nobody can know."""

# ruff: noqa: SIM115
from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time

from say import SLEEPS, asleep, child, main, program, until, waits

C = ctypes.CDLL(None)


@program()
def child_that_sleeps():
    asleep()
    process = asleep()
    waits("child", children=[process])
    os.waitpid(process, 0)  # here


@program()
def any_child():
    children = [asleep(), asleep()]
    waits("child", children=children)
    os.waitpid(-1, 0)  # here


@program()
def child_by_its_descriptor():
    asleep()
    process = asleep()
    descriptor = os.pidfd_open(process)
    waits("child", children=[process])
    os.waitid(os.P_PIDFD, descriptor, os.WEXITED)  # here


@program()
def child_in_poll():
    process = asleep()
    poller = select.poll()
    poller.register(os.pidfd_open(process), select.POLLIN)
    waits("child", children=[process])
    poller.poll()  # here


@program()
def child_of_multiprocessing_joined_for_some_time():
    """Its end is seen by a pipe that it, and only it, has open."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    waits("pipe", call="read", others=[process.pid], timed=True)
    process.join(500)


@program(2)
def parent_in_posix_spawn():
    """State D, which is no disk: the child opens a FIFO before it begins its program."""
    os.mkfifo("out")
    asleep()
    parent = os.getpid()

    def tell():
        def made():
            with open(f"/proc/{parent}/task/{parent}/children") as children:
                return children.read().split()[2:]

        until(made)
        waits("child", pid=parent, children=[int(made()[0])])
        path = os.path.abspath("out")
        waits("file", pid=int(made()[0]), call="open", end="write", kind="fifo", path=path)

    child(tell)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "out", 1, 0)])


@program(2)
def child_that_was_stopped():
    process = asleep()
    os.kill(process, signal.SIGSTOP)
    waits("stopped", pid=process)
    waits("child", children=[process])
    os.waitpid(process, 0)  # here


@program(2)
def child_that_computes():
    """Healthy: the parent waits for work."""

    def work():
        waits("running")
        while True:  # here
            pass

    process = child(work)
    waits("child", children=[process])
    os.waitpid(process, 0)  # here


@program()
def sleep_until_a_moment():
    waits("sleep", left_s=300, **SLEEPS)
    time.sleep(300)  # here


@program()
def sleep_of_some_length():
    waits("sleep", left_s=300, timed=True)
    C.sleep(300)  # here


@program()
def sleep_again_and_again():
    waits("sleep", left_s=1, repeats=True, **SLEEPS)
    while True:
        time.sleep(0.02)  # here


@program()
def sleep_by_select():
    waits("sleep", left_s=300, timed=True)
    select.select([], [], [], 300)  # here


@program()
def timer_that_repeats():
    made = C.timerfd_create(1, 0)
    C.timerfd_settime(made, 0, (ctypes.c_long * 4)(300, 0, 300, 0), None)
    waits("sleep", left_s=300, exact=True, repeats=True)
    os.read(made, 8)  # here


@program()
def file_that_is_watched():
    watch = C.inotify_init()
    C.inotify_add_watch(watch, b".", 2)
    waits("unknown", why="call", call="inotify")
    os.read(watch, 4096)  # here


@program()
def event_of_the_kernel():
    counter = C.eventfd(0, 0)
    waits("unknown", why="call", call="eventfd")
    os.read(counter, 8)  # here


@program()
def signal_by_descriptor():
    mask = (ctypes.c_ulong * 16)(1 << signal.SIGUSR1 - 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    descriptor = C.signalfd(-1, mask, 0)
    waits("unknown", why="call", call="signalfd")
    os.read(descriptor, 128)  # here


@program()
def any_signal():
    waits("unknown", why="call", call="signal")
    signal.pause()  # here


@program()
def sleep_that_a_stop_has_broken():
    """The kernel goes on with it by a call that tells nothing."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import select; select.poll().poll(600000)"])
    until(lambda: b"poll" in open(f"/proc/{sleeper.pid}/wchan", "rb").read())
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(sleeper.pid, number)
        state = b"T" if number == signal.SIGSTOP else b"S"
        until(lambda: open(f"/proc/{sleeper.pid}/stat", "rb").read().split()[2] == state)  # noqa: B023
    waits("unknown", pid=sleeper.pid, why="call", call="restart_syscall")
    sleeper.wait()


if __name__ == "__main__":
    main()
