"""Waits for files, FIFOs, file locks and terminals."""

# ruff: noqa: SIM115 - what is opened stays open, or never is
from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import time

from say import SLEEPS, asleep, cannot, child, main, program, until, waits

FIFO = {"kind": "fifo", "path": os.path.abspath("ckpt.pt")}
LOCK = os.path.abspath("lock")


@program(lines=True)
def fifo_opened_to_write_without_a_reader():
    os.mkfifo("ckpt.pt")
    waits("file", call="open", end="write", **FIFO)
    open("ckpt.pt", "wb")  # here


@program()
def fifo_opened_to_read_without_a_writer():
    os.mkfifo("ckpt.pt")
    waits("file", call="open", end="read", **FIFO)
    open("ckpt.pt", "rb")  # here


@program()
def fifo_opened_by_a_path_of_another_folder():
    os.mkfifo("ckpt.pt")
    folder = os.open(".", os.O_RDONLY)
    os.chdir("/")
    waits("file", call="open", end="write", **FIFO)
    os.open("ckpt.pt", os.O_WRONLY, dir_fd=folder)  # here


@program()
def fifo_opened_and_then_removed():
    """Nobody can ever open its other end."""
    os.mkfifo("ckpt.pt")
    opener = child(lambda: os.open(FIFO["path"], os.O_WRONLY))
    until(lambda: b"wait_for_partner" in open(f"/proc/{opener}/wchan", "rb").read())
    os.unlink("ckpt.pt")
    waits("file", pid=opener, call="open", end="write", unlinked=True, **FIFO)
    waits("child", children=[opener])
    os.waitpid(opener, 0)  # here


@program(2)
def fifo_read_with_an_idle_writer():
    os.mkfifo("ckpt.pt")
    both = os.open("ckpt.pt", os.O_RDWR)
    reads, writes = os.open("ckpt.pt", os.O_RDONLY), os.open("ckpt.pt", os.O_WRONLY)
    writer = asleep(both, reads)
    os.close(both)
    os.close(writes)
    waits("sleep", pid=writer, left_s=600, **SLEEPS)
    waits("file", call="read", others=[writer], **FIFO)
    os.read(reads, 1)  # here


@program()
def fifo_written_until_it_is_full():
    os.mkfifo("ckpt.pt")
    both = os.open("ckpt.pt", os.O_RDWR)
    reads, writes = os.open("ckpt.pt", os.O_RDONLY), os.open("ckpt.pt", os.O_WRONLY)
    reader = asleep(both, writes)
    os.close(both)
    os.close(reads)
    waits("file", call="write", others=[reader], **FIFO)
    os.write(writes, bytes(1 << 20))  # here


def hold(take) -> int:
    """A child that has taken a lock and sleeps."""
    taken, tell = os.pipe()
    holder = child(lambda: (take(), os.write(tell, b"!"), time.sleep(600)))
    os.read(taken, 1)
    return holder


@program()
def flock_of_a_living_process():
    holder = hold(lambda: fcntl.flock(os.open("lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX))
    file = open("lock")
    waits("file_lock", path=LOCK, holders=[holder])
    fcntl.flock(file, fcntl.LOCK_EX)  # here


@program()
def flock_taken_before_a_fork_by_a_parent_that_died():
    tell, told = os.pipe()

    def take_and_fork():
        fcntl.flock(os.open("lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
        os.write(told, str(asleep()).encode())

    os.waitpid(child(take_and_fork), 0)
    file = open("lock")
    waits("file_lock", path=LOCK, holders=[int(os.read(tell, 20))])
    fcntl.flock(file, fcntl.LOCK_EX)  # here


@program()
def flock_of_a_process_in_another_pid_namespace():
    take = "import fcntl, time; f = open('lock', 'w'); fcntl.flock(f, 2); print(flush=True)"
    holder = subprocess.Popen(
        (
            *["unshare", "--user", "--map-root-user", "--pid", "--fork"],
            sys.executable,
            "-c",
            f"{take}; time.sleep(600)",
        ),
        stdout=subprocess.PIPE,
    )
    if not holder.stdout.readline():
        cannot("a pid namespace cannot be made")
    with open(f"/proc/{holder.pid}/task/{holder.pid}/children") as children:
        inside = int(children.read())
    file = open("lock")
    waits("file_lock", path=LOCK, holders=[inside])
    fcntl.flock(file, fcntl.LOCK_EX)  # here


@program()
def lockf_of_a_range_that_another_process_has():
    """A third one has another part of the same file."""

    def take(begin):
        file = os.open("lock", os.O_CREAT | os.O_RDWR)
        return lambda: fcntl.lockf(file, fcntl.LOCK_EX, 10, begin)

    hold(take(100))
    holder = hold(take(0))
    file = open("lock", "r+b")
    waits("file_lock", path=LOCK, holders=[holder])
    fcntl.lockf(file, fcntl.LOCK_EX, 5, 5)  # here


@program()
def lock_of_an_open_file():
    """Of no process, so the kernel gives it the number -1; who has the file open has the lock."""

    def take():
        mine = os.open("lock", os.O_CREAT | os.O_RDWR)
        fcntl.fcntl(mine, 37, struct.pack("=hhiqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0, 0))

    holder = hold(take)
    file = open("lock", "r+b")
    waits("file_lock", path=LOCK, holders=[holder])
    fcntl.lockf(file, fcntl.LOCK_EX)  # here


@program(needs="filelock")
def soft_lock_that_heals_itself():
    """A lock that is nothing but a file: whoever waits for it looks again, and takes that of a
    process that has died."""
    from filelock import SoftFileLock

    hold(lambda: SoftFileLock("lock").acquire())
    waits("sleep", repeats=True, left_s=1, **SLEEPS)
    SoftFileLock("lock").acquire(poll_interval=0.05)


@program()
def file_opened_while_another_process_leases_it():
    """The holder has a while to give it back; nothing else makes the open of a plain file wait."""
    path = os.path.abspath("data")
    signal.signal(signal.SIGIO, signal.SIG_IGN)

    def lease():
        fcntl.fcntl(os.open(path, os.O_CREAT | os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)

    hold(lease)
    waits("file", call="open", end="both", kind="regular", path=path)
    os.open(path, os.O_RDWR)  # here


@program()
def file_read_into_memory_that_does_not_come():
    """As far as the kernel: the page for its bytes waits for a handler of faults."""
    library = ctypes.CDLL(None)
    number = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    page = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    faults = library.syscall(number, os.O_CLOEXEC)
    if faults < 0:
        cannot("faults of memory cannot be handled")
    for request, values in ((0xC018AA3F, (0xAA, 0, 0)), (0xC020AA00, (page, mmap.PAGESIZE, 1, 0))):
        fcntl.ioctl(faults, request, struct.pack(f"={len(values)}Q", *values))
    with open("data", "w+b") as file:
        file.write(bytes(4000))
    data = os.open("data", os.O_RDONLY)
    os.lseek(data, 1000, os.SEEK_SET)
    path = os.path.abspath("data")
    waits("file", call="read", kind="regular", path=path, offset=1000, size=4000)
    library.read(data, ctypes.c_void_p(page), 10)  # here


@program()
def device_that_is_silent():
    try:
        device = os.open("/dev/kmsg", os.O_RDONLY)
    except OSError:
        cannot("/dev/kmsg is not for us")
    os.lseek(device, 0, os.SEEK_END)
    waits("device", path="/dev/kmsg")
    while os.read(device, 8192):  # here
        pass


@program()
def terminal_that_asks():
    _, slave = os.openpty()
    os.dup2(slave, 0)
    waits("terminal", path=os.ttyname(slave), stream=0)
    sys.stdin.readline()  # here


if __name__ == "__main__":
    main()
