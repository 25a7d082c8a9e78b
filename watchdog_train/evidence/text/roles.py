"""Which process a file is about: from its name and folder, and from what its stacks show. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from watchdog_train.core.diagnosis.idle import WORKER_LOOP
from watchdog_train.core.diagnosis.stacks import ThreadStack, frame_matches, own_frames
from watchdog_train.core.model import Role, Value

_RANK = re.compile(r"(?<![a-z])(?:global)?rank[_\-. ]?(\d{1,6})(?!\d|[_-]?only)")
_ENDS = r"(?=[_\-. ]?\d|\.|[_\- ]?pid|\Z)"
"""After a word that tells a role: in `datasets-map-hang.txt` and `worker-stuck.log` none does."""
_WORKER = re.compile(
    rf"(?<![a-z])(?:data)?(?:loader[_-]?)?worker(?:[_\-. ]?(\d{{1,6}})(?![\da-z])|{_ENDS})"
)
_PID = re.compile(r"(?<![a-z])(?:pid|proc(?:ess)?)[_\-. ]?(\d{1,10})(?!\d)")
_BARE_NUMBER = re.compile(r"(?:py-?spy|stack|dump|faulthandler|trace)s?[_\-.](\d{2,10})(?!\d)")
_LAUNCHER = re.compile(
    r"(?<![a-z])(?:launcher|torchrun|agent|elastic|accelerate|supervisor|controller|raylet|driver|"
    rf"mpirun)(?:[_-](?:launch(?:er)?|agent|run))?{_ENDS}"
)
_OTHER = re.compile(
    r"(?<![a-z])(?:other|helper|child|subprocess|compile[_-]?worker|forkpool|spawnpool|pool|map|"
    rf"resource[_-]?tracker|service|wandb|server|saver|process){_ENDS}"
)
_LAUNCHER_FOLDERS = ("launcher", "torchrun", "agent")
_LAUNCHER_COMMAND = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate(?:\.commands)?[ .]launch|"
    r"deepspeed(?:\.launcher|\s)|mpirun|srun)\b"
)
_LAUNCHER_FRAMES = (
    "run|_invoke_run|_monitor_workers|launch_agent|elastic_launch|main "
    "(torch/distributed/*|accelerate/commands/*|deepspeed/launcher/*)"
)
_RANK_FOLDER = re.compile(
    r"(?:\A|[/\\])(?:rank[_-]?)?(\d{1,5})[/\\](?:stdout|stderr|error)[\w.]*\Z"
)


class Who(Value):
    """What a name tells; None: nothing."""

    role: Role | None = None
    rank: int | None = None
    worker: int | None = None
    pid: int | None = None


def who_by_name(name: str) -> Who:
    """From a file's path relative to what was given: `rank0-worker1.pid13.txt`, `0/stderr.log`.

    The file's own name decides; its folders fill in what it leaves open, where they have numbers:
    people also name folders after what is wrong, such as `dataloader-worker-died`.
    """
    folder, _, base = name.replace("\\", "/").lower().rpartition("/")
    own, above = _parts(base), _parts(folder)
    rank = own.rank if own.rank is not None else above.rank
    if rank is None:
        elastic = _RANK_FOLDER.search(name)
        rank = int(elastic[1]) if elastic else None
    role = own.role
    if role is None and folder.rpartition("/")[2] in _LAUNCHER_FOLDERS:
        role = "launcher"
    if role is None and (above.rank is not None or above.worker is not None):
        role = above.role
    return Who(
        role=role or ("rank" if rank is not None else None),
        rank=rank,
        worker=own.worker,
        pid=own.pid or above.pid,
    )


def _parts(text: str) -> Who:
    rank, worker, pid = _RANK.search(text), _WORKER.search(text), _PID.search(text)
    pid = pid or _BARE_NUMBER.search(text)
    role: Role | None = None
    if _LAUNCHER.search(text):
        role = "launcher"
    elif worker and not re.search(r"compile[_-]?worker", text):
        role = "worker"
    elif _OTHER.search(_PID.sub("", text)):
        role = "other"
    elif rank or re.search(r"(?<![a-z])(?:main|trainer|parent|train)(?![a-z])", text):
        role = "rank"
    return Who(
        role=role,
        rank=int(rank[1]) if rank else None,
        worker=int(worker[1]) if role == "worker" and worker and worker[1] else None,
        pid=int(pid[1]) if pid else None,
    )


def is_launcher(command: str) -> bool:
    """Whether a command line starts ranks."""
    return _LAUNCHER_COMMAND.search(command[:500]) is not None


def role_by_stack(threads: Sequence[ThreadStack], command: str | None) -> Role:
    """For a dump that no name explains: by its command line, else by its frames."""
    if command and is_launcher(command):
        return "launcher"
    for thread in threads:
        if not thread.main and len(threads) > 1:
            continue
        frames = own_frames(thread.frames)
        if thread.name == "pt_data_worker" or any(
            frame_matches(WORKER_LOOP, frame) for frame in frames
        ):
            return "worker"
        if any(frame_matches(_LAUNCHER_FRAMES, frame) for frame in frames) and not any(
            frame_matches("backward|forward|training_step|train_step", frame) for frame in frames
        ):
            return "launcher"
        if any(frame_matches("_bootstrap (*multiprocess*/process.py)", frame) for frame in frames):
            return "other"
    return "rank"
