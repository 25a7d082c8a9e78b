"""What this process is in its job: launcher, rank, worker or something else; it must never raise.

Only what the process itself can know. A training nested in another one calls itself a rank too;
the supervisor, who sees the tree, demotes it.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812


def own_role(forked, worker_id):
    """(role, rank, local rank, world size), None where it is not known."""
    rank = number("RANK")
    local_rank = number("LOCAL_RANK")
    world = number("WORLD_SIZE")
    if worker_id is not None:
        return L.ROLE_WORKER, rank, local_rank, world
    argv = command_line()
    if forked or _multiprocessing_child(argv):
        return L.ROLE_OTHER, rank, local_rank, world
    if is_launcher(argv):
        return L.ROLE_LAUNCHER, None, None, None
    if rank is not None:
        return L.ROLE_RANK, rank, local_rank, world
    return L.ROLE_RANK, 0, None, None


def is_stranger(environ):
    """Whether a process outside of the run, such as a spooler, has started us with its environment.

    The keeper adopts all orphans of the run, so it is above each of its processes while it lives.
    False where that cannot be read, or where the keeper is in another pid namespace.
    """
    try:
        keeper, start, job = map(int, environ[L.ENV_KEEPER].split())
        state, _, began = _stat(keeper)
        if began != start or state in b"ZX":
            return False
        _, above, _ = _stat("self")
        while above > 1 and above != keeper:
            if _name(above) == L.STEP_DAEMON:  # srun starts its tasks by it
                return job > 0 and environ.get("SLURM_JOB_ID") != str(job)
            _, above, _ = _stat(above)
        return above == 1
    except Exception:
        return False


def _stat(pid):
    """State, parent, start in clock ticks."""
    with open("/proc/" + str(pid) + "/stat", "rb") as file:
        fields = file.read(4096).rpartition(b")")[2].split()
    return fields[0], int(fields[1]), int(fields[19])


def _name(pid):
    with open("/proc/" + str(pid) + "/comm", "rb") as file:
        return file.read(64).strip().decode("utf-8", "replace")


def group_rank(arguments):
    """(rank, local rank, world size) by the arguments of init_process_group, then the environment.

    A rank of torch.multiprocessing.spawn has its number only there, or in the address.
    """
    address = str(arguments.get("init_method") or "")
    rank, world = (
        _first(
            arguments.get(name),
            address.partition("?")[2].partition(name + "=")[2].partition("&")[0],
            os.environ.get(variable),
        )
        for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
    )
    return rank, number("LOCAL_RANK"), world


def is_launcher(argv):
    rest = list(argv[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option.startswith("--"):
            continue
        if option[:2] in ("-X", "-W"):
            if len(option) == 2:
                del rest[:1]
            continue
        if option.endswith("c"):
            return False
        # Options may be joined: python -um torch.distributed.run.
        if option.endswith("m"):
            return bool(rest) and rest[0] in L.LAUNCHER_MODULES
    if not rest:
        return False
    path = rest[0].replace("\\", "/")
    name = path.rpartition("/")[2]
    name = name[:-4] if name.endswith(".exe") else name
    return name in L.LAUNCHER_SCRIPTS or path.endswith(L.LAUNCHER_FILES)


def command_line():
    """The interpreter's own command line; sys.argv is not yet complete under `python -m`."""
    found = getattr(sys, "orig_argv", None)
    if found:
        return found
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read(1 << 16).split(b"\0")[:-1]]
    except OSError:
        return [sys.executable or "python", *getattr(sys, "argv", ())]


def start_ticks():
    """Start of this process in clock ticks since boot; 0 without /proc."""
    try:
        return _stat("self")[2]
    except Exception:
        return 0


def _multiprocessing_child(argv):
    # A spawned child imports its main module, and with it torch, before it knows its parent.
    if "--multiprocessing-fork" in argv or any(
        "multiprocessing.forkserver" in word for word in argv[1:4]
    ):
        return True
    # multiprocess: the copy of multiprocessing that datasets uses.
    for name in ("multiprocessing.process", "multiprocess.process"):
        process = sys.modules.get(name)
        if process is not None and process.parent_process() is not None:
            return True
    return False


def number(name):
    """A variable of the environment as a number that is not negative, else None."""
    return _first(os.environ.get(name))


def _first(*texts):
    """The first of them that is a number and not negative."""
    for text in texts:
        try:
            value = int(text)
        except (TypeError, ValueError):
            continue
        if 0 <= value < 1 << 31:
            return value
    return None
