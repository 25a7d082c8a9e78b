"""Where everybody is, in one line: `ranks 0-6: all_reduce (train.py:88) | rank 7: ...`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from watchdog_train.core.diagnosis.collectives import spans
from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import busiest_thread, is_idle_process
from watchdog_train.core.diagnosis.places import root_process
from watchdog_train.core.diagnosis.stacks import Frame, frame_matches, own_frames, trimmed
from watchdog_train.core.model import Explanation

MOST_GROUPS = 6
_COLLECTIVE = "* (torch/distributed/*|deepspeed/comm/*|horovod/*)"
_WRAPPER = "wrapper|wait|synchronize|inner|_fn|__call__ (torch/distributed/*|deepspeed/comm/*)"
_LOADER_WAIT = "_try_get_data|_get_data|_next_data (torch/utils/data/*)"
_LIBRARY = re.compile(
    r"(?:torch|torchvision|transformers|accelerate|lightning|pytorch_lightning|datasets|deepspeed|"
    r"multiprocess\w*|huggingface_hub|trl|peft|wandb|numpy|urllib3|requests|concurrent|asyncio|"
    r"importlib|filelock|tqdm|click|h5py|PIL)/|"
    r"(?:threading|queue|selectors|socket|ssl|subprocess|contextlib|functools|runpy|typing)\.py\Z|<"
)
_FILE_SYSTEMS = ("nfs", "fuse", "ceph", "lustre", "gpfs", "beegfs", "cifs", "smb", "ext4", "xfs")


def glance(evidence: Evidence, found: Explanation | None = None) -> str:
    """Ranks at one place together, the largest group first, then workers; without idle ones."""
    places: dict[tuple[str, str], list[ProcessEvidence]] = {}
    for process in evidence.processes:
        if process.role in ("launcher", "keeper") or is_idle_process(process.threads):
            continue
        places.setdefault((process.role, where(process)), []).append(process)
    root = root_process(evidence, found)
    order = {"rank": 0, "worker": 1, "other": 2}
    ordered = sorted(places.items(), key=lambda item: (order.get(item[0][0], 3), -len(item[1])))
    shown = [f"{_names(role, group)}: {text}" for (role, text), group in ordered]
    if len(shown) > MOST_GROUPS:  # the one that matters must not be among those left out
        at = next((n for n, (_, group) in enumerate(ordered) if root in group), 0)
        kept = [*shown[: MOST_GROUPS - 1], shown[max(at, MOST_GROUPS - 1)]]
        shown = [*kept, f"and {len(shown) - MOST_GROUPS} more"]
    return " | ".join(shown)


def where(process: ProcessEvidence) -> str:
    """What one process is in, in a few words: `DataLoader wait`, `open (nfs, D state)`."""
    if process.state in ("Z", "X"):
        return "dead"
    thread = busiest_thread(process.threads)
    frames = own_frames(thread.frames) if thread else ()
    name, text = _name_and_text(frames)
    if process.state == "D":
        name = name if frames else process.wchan or "the kernel"
        system = _file_system(process)
        return f"{name} ({system + ', ' if system else ''}D state)"
    if process.state in ("T", "t"):
        return f"stopped, in {text}" if frames else "stopped"
    return text if frames else "no stack"


def _file_system(process: ProcessEvidence) -> str | None:
    places = " ".join([process.wchan or "", *process.kernel[:20]]).lower()
    if "rpc_" in places:
        return "nfs"
    return next((name for name in _FILE_SYSTEMS if name in places), None)


def _name_and_text(frames: Sequence[Frame]) -> tuple[str, str]:
    """The function that decides, and the same with its place."""
    if any(frame_matches(_LOADER_WAIT, frame) for frame in frames):
        return "DataLoader wait", "DataLoader wait"
    own = next((frame for frame in frames if not frame.native and _is_users(frame)), None)
    for frame in frames:
        if frame_matches(_COLLECTIVE, frame) and not frame_matches(_WRAPPER, frame):
            return frame.name, f"{frame.name} ({_place(own)})" if own else str(frame)
    rest = trimmed(frames)
    return (rest[0].name, str(rest[0])) if rest else ("no stack", "no stack")


def _is_users(frame: Frame) -> bool:
    return _LIBRARY.match(frame.short) is None


def _place(frame: Frame) -> str:
    name = frame.short.rpartition("/")[2]
    return f"{name}:{frame.line}" if frame.line else name


def _names(role: str, group: Sequence[ProcessEvidence]) -> str:
    if role == "rank":
        ranks = [process.rank for process in group if process.rank is not None]
        return spans(ranks) if len(ranks) == len(group) else ", ".join(p.label for p in group[:4])
    if role != "worker" or any(process.worker is None for process in group):
        more = f" and {len(group) - 3} more" if len(group) > 3 else ""
        return ", ".join(process.label for process in group[:3]) + more
    by_rank: dict[int | None, list[int]] = {}
    for process in group:
        by_rank.setdefault(process.rank, []).append(process.worker or 0)
    parts = []
    for rank, workers in by_rank.items():
        mine = spans(workers).replace("rank", "worker", 1)
        parts.append(f"rank {rank} {mine}" if rank is not None else mine)
    return ", ".join(parts)
