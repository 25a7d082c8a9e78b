"""The heartbeat slot of this process: a mapped file of independent 64-bit words.

It must never raise, print, or write into the slot of another process: after a fork the parent's
mapping is dropped and the child makes one of its own on its first word.
"""

import os
import sys
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import roles

FREE_BYTES_NEEDED = 16 << 20

now_ns = time.monotonic_ns
SAFE_FLAGS = 0  # for files that we open: no links, not inherited, bytes unchanged
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
    SAFE_FLAGS |= getattr(os, _name, 0)


_FRAME = type(sys._getframe())


def harmless(function):
    """A function that raises no error of its own, and returns None in its place."""

    def wrapper(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise_if_of_a_signal(error)
            return None

    wrapper.__name__ = getattr(function, "__name__", "wrapper")
    wrapper.__doc__ = function.__doc__
    wrapper.__wrapped__ = function  # type: ignore[attr-defined]
    return wrapper


def raise_if_of_a_signal(error):
    """Raise it again where a signal handler of the script raised it, which ran inside our code.

    A timeout by SIGALRM, or torch's report of a dead DataLoader worker, must reach the script. A
    handler is known by its arguments: a signal number, then the frame that it has interrupted.
    """
    found = error.__traceback__
    while found is not None:
        code, values = found.tb_frame.f_code, found.tb_frame.f_locals
        # Up to two parameters with names, `self` before them, or all of them in one `*args`.
        given = [values.get(name) for name in code.co_varnames[: code.co_argcount + 1]]
        given = [part for one in given for part in (one if type(one) is tuple else (one,))]
        for number, frame in zip(given, given[1:]):  # noqa: B905, RUF007 - Python 3.8
            if isinstance(frame, _FRAME) and isinstance(number, int):
                raise error
        found = found.tb_next


class _Lazy(list):
    """Stands where the words will be: the first access makes the slot."""

    def __getitem__(self, index):
        return open_slot()[index]

    def __setitem__(self, index, value):
        open_slot()[index] = value


# The words. A plain list where there is no slot, so that no writer has to ask.
words = [0] * L.SLOT_WORDS
supervised = False
slot_dir = ""
attempt_dir = ""
_attempt_inode = None
attempt = 0
resume_from = None
settings_json = ""
resume_json = ""
allow_ptracer = True
worker_server = True
# Grows at every fork: a value kept across one can be recognised by it.
generation = 0
# The thread whose phase is the phase of the process: the one that takes the steps.
owner = 0
# Whether that thread has trained, or is only the one that began.
owner_trains = False
# The thread that has made the last beat or step.
deciding = 0
has_slot = False
worker_id = None
on_open: list = []
on_fork_child: list = []
on_close: list = []

_opening = False
_forked = False
_registered = False
_hears = False
# Mappings are never closed: mmap keeps a descriptor number, and closing it after the user's own
# os.closerange() would close whatever has that number now.
_mappings: list = []


def configure(environ):
    """Read the supervisor's settings once: the user may clear or change the environment later."""
    global words, supervised, slot_dir, attempt_dir, attempt, resume_from
    global settings_json, resume_json, allow_ptracer, worker_server, owner, _attempt_inode
    directory = environ.get(L.ENV_SLOT_DIR)
    supervised = bool(directory and environ.get(L.ENV_RUN_ID))
    supervised = supervised and not roles.is_stranger(environ)
    if not supervised:
        return
    slot_dir = os.path.abspath(directory)
    found = environ.get(L.ENV_ATTEMPT_DIR)
    attempt_dir = os.path.abspath(found) if found else ""
    _attempt_inode = _inode_of_attempt()
    try:
        attempt = max(0, int(environ.get(L.ENV_ATTEMPT, "0")))
    except ValueError:
        attempt = 0
    resume_from = environ.get(L.ENV_RESUME_FROM) or None
    settings_json = environ.get(L.ENV_SETTINGS, "")
    resume_json = environ.get(L.ENV_RESUME_HOOK, "")
    allow_ptracer = environ.get(L.ENV_NO_PTRACER, "") in ("", "0")
    worker_server = environ.get(L.ENV_NO_WORKER_SERVER, "") in ("", "0")
    owner = _thread_id()
    words = _Lazy()


def open_slot():
    """Make the slot if it is missing; the words, or a plain list when it cannot be made."""
    global words, _opening, has_slot
    if not isinstance(words, _Lazy):
        return words
    if _opening:
        return [0] * L.SLOT_WORDS
    _opening = True
    made = harmless(_make)()
    _opening = False
    has_slot = made is not None
    words = [0] * L.SLOT_WORDS if made is None else made
    _register()
    for call in on_open:
        harmless(call)()
    return words


@harmless
def become_worker(number):
    global worker_id
    worker_id = number
    mine = open_slot()
    mine[L.W_ROLE] = L.ROLE_WORKER
    mine[L.W_WORKER] = number + 1
    mine[L.W_PHASE] = L.PHASE_UNKNOWN


@harmless
def become_rank(rank, local_rank, world):
    """This process has joined a process group: it is a rank, whatever its role was before."""
    mine = open_slot()
    if worker_id is not None:
        return
    _write_rank(mine, rank, local_rank, world)
    mine[L.W_ROLE] = L.ROLE_RANK
    if mine[L.W_PHASE] == L.PHASE_UNKNOWN:
        mine[L.W_PHASE] = L.PHASE_STARTUP


def take_ownership():
    """The calling thread is the one that trains."""
    global owner, owner_trains
    owner = _thread_id()
    owner_trains = True


def take_decision():
    """The calling thread makes steps; its native number costs as much as a beat, so ask it once."""
    global deciding
    import _thread

    deciding = _thread.get_ident()
    words[L.W_DECIDING] = _thread.get_native_id()


@harmless
def close():
    """Record that the interpreter exits; the file goes when the modules do."""
    if has_slot and not words[L.W_EXIT]:
        failed = _failed()
        words[L.W_EXIT] = L.EXIT_FAILED if failed else L.EXIT_QUIET
        if words[L.W_PHASE] != L.PHASE_UNKNOWN:
            # What an exception has ended is no finished training.
            words[L.W_PHASE] = L.PHASE_UNKNOWN if failed else L.PHASE_FINISHING
            words[L.W_PHASE_ENTRIES] += 1
        for call in on_close:
            call()


def _failed():
    if getattr(sys, "last_type", None) is not None:
        return True
    # A child of multiprocessing has its exceptions printed by its own _bootstrap, which ends the
    # threads, and with them calls us, when it knows the exit code.
    frame = sys._getframe(1) if "multiprocessing.process" in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name == "_bootstrap" and "exitcode" in frame.f_locals:
            return frame.f_locals["exitcode"] not in (0, None)
        frame = frame.f_back
    return False


def unlink():
    """Remove the file, for processes that end without running exit handlers."""
    _last_words.say()


def float_bits(value):
    import struct

    return struct.unpack("=Q", struct.pack("=d", value))[0]


def replace_file(name, data):
    """Write a file in the slot directory; a reader finds the old one or this one, never a part."""
    path = os.path.join(slot_dir, name)
    temporary = path + ".tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE_FLAGS, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


@harmless
def _inode_of_attempt():
    return os.stat(attempt_dir).st_ino


def append_file(folder, kind, data, most_bytes):
    """Append data to this process's file of a kind, in a single write.

    OSError: no room for all of it, or another directory has taken the place of attempt_dir: what
    is written there is lost, and its owner may be another user.
    """
    if folder == attempt_dir and _inode_of_attempt() != _attempt_inode:
        raise OSError("another directory")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | SAFE_FLAGS
    flags |= getattr(os, "O_NONBLOCK", 0)  # a FIFO of that name must not hold the training
    name = os.path.join(folder, kind + "." + str(os.getpid()) + ".jsonl")
    descriptor = os.open(name, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size < most_bytes and os.write(descriptor, data) < len(data):
            raise OSError("no room for the whole line")
    finally:
        os.close(descriptor)


def claim(name):
    """True in the first process that asks for a name, and if no file can be made."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_FLAGS
    try:
        os.close(os.open(os.path.join(slot_dir, name), flags, 0o600))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def map_file(descriptor, size, **access):
    """A mapping that keeps no descriptor of its own where Python can do without; never closed."""
    import mmap

    if sys.version_info >= (3, 13):
        access["trackfd"] = False
    _mappings.append(mmap.mmap(descriptor, size, **access))
    return memoryview(_mappings[-1]).cast("Q")


def also_unlink(path):
    """A socket, which is removed together with the slot."""
    _last_words.socket = path


class _LastWords:
    """Removes the slot when the modules are torn down: a hang before that can still be read."""

    path = None  # type: str | None
    dump = None  # type: str | None
    socket = None  # type: str | None

    def say(self, remove=os.unlink, look=os.stat):
        path, self.path = self.path, None
        try:
            if path is not None:
                remove(path)
                if self.socket is not None:
                    remove(self.socket)
                if self.dump is not None and look(self.dump).st_size == 0:
                    remove(self.dump)
        except Exception:
            pass

    __del__ = say


_last_words = _LastWords()


def _thread_id():
    import _thread

    return _thread.get_ident()


@harmless
def _register():
    global _registered
    if _registered:
        return
    _registered = True
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_fork_in_child)
    import atexit

    atexit.register(close)
    hear_of_the_end()


@harmless
def hear_of_the_end():
    """Threads are joined before exit handlers run, and a hang in that join is an exit, too.

    Costs nothing where threading is loaded; called again once torch, which loads it, is.
    """
    global _hears
    threading = sys.modules.get("threading")
    if threading is not None and not _hears:
        _hears = True
        threading._register_atexit(close)


@harmless
def after_fork_in_child():
    """Drop the parent's state; nothing is made until this process has something to report."""
    global words, generation, _forked, has_slot, owner, owner_trains, worker_id, _opening, deciding
    generation += 1
    deciding = 0
    _forked, _opening, has_slot, worker_id = True, False, False, None
    _last_words.path = _last_words.socket = None
    owner, owner_trains = _thread_id(), False
    if supervised:
        words = _Lazy()
    for call in on_fork_child:
        harmless(call)()


def _room():
    """Whether another slot may be made: it must never be the reason that /dev/shm is full."""
    names = os.listdir(slot_dir)
    if len([name for name in names if name.endswith(L.SLOT_SUFFIX)]) >= L.SLOT_MAX_FILES:
        return False
    if hasattr(os, "statvfs"):
        space = os.statvfs(slot_dir)
        return space.f_bavail * space.f_frsize >= FREE_BYTES_NEEDED
    return True


def _make():
    if not _room():
        return None
    pid = os.getpid()
    path = os.path.join(slot_dir, str(pid) + L.SLOT_SUFFIX)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFE_FLAGS
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        # This pid before an exec, or an earlier process of the same number.
        os.unlink(path)
        descriptor = os.open(path, flags, 0o600)
    try:
        # Real zeros, not a sparse file: a sparse page on a full disk is a SIGBUS later.
        if os.write(descriptor, bytes(L.SLOT_BYTES)) != L.SLOT_BYTES:
            raise OSError("no room for a slot")
        view = map_file(descriptor, L.SLOT_BYTES)
    except Exception:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    _last_words.path, _last_words.dump = path, path[: -len(L.SLOT_SUFFIX)] + L.DUMP_SUFFIX
    role, rank, local_rank, world = roles.own_role(_forked, worker_id)
    view[L.W_PID] = pid
    view[L.W_START] = roles.start_ticks()
    view[L.W_ROLE] = role
    view[L.W_ATTEMPT] = attempt
    _write_rank(view, rank, local_rank, world)
    if worker_id is not None:
        view[L.W_WORKER] = worker_id + 1
    if role in (L.ROLE_RANK, L.ROLE_LAUNCHER):
        view[L.W_PHASE] = L.PHASE_STARTUP
    view[L.W_MAGIC] = L.MAGIC
    return view


def _write_rank(view, rank, local_rank, world):
    if rank is not None:
        view[L.W_RANK] = rank + 1
    if local_rank is not None:
        view[L.W_LOCAL_RANK] = local_rank + 1
    if world is not None:
        view[L.W_WORLD_SIZE] = world
        view[L.W_LOCAL_WORLD] = roles.number("LOCAL_WORLD_SIZE") or 0


try:
    configure(os.environ)
except Exception:
    supervised = False
