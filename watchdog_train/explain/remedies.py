"""Which remedies have grounds in the observation, and which would change nothing here.

A family names candidates; a table of evidence decides whether one is offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from watchdog_train.core.diagnosis.error_classes import is_error
from watchdog_train.core.diagnosis.facts import FULL_SHM_SHARE, Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import WORKER_LOOP
from watchdog_train.core.diagnosis.stacks import Frame, frame_matches, own_frames
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.explain import frame_sets
from watchdog_train.explain.chains import has_failed_end

_LITTLE_MEMORY = 0.05
_BUSY_PER_CORE = 1.2
_SIGBUS = 7
_NETWORK_KERNEL = re.compile(r"nfs|rpc_wait|lustre|ptlrpc|ceph|fuse|cifs|smb|gpfs|9p_")
_CUDA_THREADS = ("cuda", "pt_nccl")


class _When(NamedTuple):
    """Evidence for some remedies: a frame of those involved, an error message of the class with the
    ground's name, or a fact. One is enough.
    """

    ground: x.RemedyGround
    remedies: str
    frames: str = ""
    fact: Callable[[Grounds], object] | None = None
    alone: Callable[[Grounds], object] | None = None
    """A fact that calls for them whatever the cause."""


class Grounds:
    def __init__(self, evidence: Evidence, found: x.Explanation) -> None:
        self.evidence = evidence
        roots = [*([found.root] if found.root else ()), *found.also, *found.knot]
        self.roots = tuple(one.doing for one in roots)
        self.how = tuple(victim.how for victim in found.victims)
        self.places = [one.own for one in roots if one.own], [one.at for one in roots if one.at]
        self._pids = {one.who.pid for one in roots} | {one.pid for one in found.alike}

    @cached_property
    def involved(self) -> tuple[ProcessEvidence, ...]:
        """The processes of the root; all if it has no stacks, or without a root."""
        found = tuple(p for p in self.evidence.processes if p.pid in self._pids and p.pid)
        return found if any(p.threads for p in found) else self.evidence.processes

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        threads = chain.from_iterable(process.threads for process in self.involved)
        return tuple(frame for thread in threads for frame in own_frames(thread.frames))

    def runs(self, pattern: str, processes: Iterable[ProcessEvidence] | None = None) -> bool:
        """Whether a frame of those involved, or of these processes, fits."""
        if processes is None:
            return any(frame_matches(pattern, frame) for frame in self.frames)
        threads = chain.from_iterable(process.threads for process in processes)
        return any(frame_matches(pattern, frame) for t in threads for frame in t.frames)

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        raised = [*self.evidence.exceptions, *(p.exception for p in self.evidence.processes)]
        lines = chain.from_iterable(log.lines for log in self.evidence.logs)
        return (*(one.text for one in raised if one is not None), *lines)

    @property
    def in_collective(self) -> bool:
        """Ranks wait for ranks, and no other obstacle was seen."""
        return bool(self.roots or self.how) and all(
            isinstance(doing, (x.CollectiveWait, x.StoreWait, w.DeviceWait))
            for doing in self.roots or self.how
        )

    @property
    def others_meet(self) -> bool:
        """Others wait in a collective or rendezvous for the root."""
        return any(isinstance(how, (x.CollectiveWait, x.StoreWait)) for how in self.how)

    @property
    def ends(self) -> tuple[x.End, ...]:
        return tuple(doing for doing in self.roots if isinstance(doing, x.End))

    @property
    def dead_holder(self) -> bool:
        """The root waits for a lock file whose owner has exited, or whose build no process runs."""
        if not any(isinstance(one, w.FileLockWait) and not one.holders for one in self.roots):
            return False
        alive = [lock.owner_alive for lock in self.evidence.locks]
        if alive:
            return False in alive and True not in alive
        baton = self.runs(frame_sets.EXTENSION_LOCK)
        return baton and not self.runs(frame_sets.BUILDS_EXTENSION, self.evidence.processes)

    @property
    def on_network(self) -> bool:
        """The object that the root waits for is on a network file system."""
        named = any(getattr(doing, "network", None) for doing in self.roots)
        kernel = (text for p in self.involved for text in (p.wchan or "", *p.kernel[:8]))
        return named or any(_NETWORK_KERNEL.search(text) for text in kernel)

    @property
    def full_shm(self) -> bool:
        share = self.evidence.host.shm_used_share
        return share is not None and share > FULL_SHM_SHARE

    @property
    def little_memory(self) -> bool:
        """The OOM killer acted, the machine swaps, or hardly any memory is left."""
        host = self.evidence.host
        share = host.memory_available_share
        little = share is not None and share < _LITTLE_MEMORY
        return self.oom_killed or bool(host.swap_bytes_s) or little

    @property
    def oom_killed(self) -> bool:
        return any(end.sender == "oom-killer" for end in self.ends)

    def offered(self, names: Iterable[str]) -> tuple[x.Remedy, ...]:
        """A family's candidates with grounds here, then those that a fact calls for."""
        offer: dict[str, x.Remedy] = {}
        for name in names:
            held = next(filter(self._holds, _GROUNDS.get(name, ())), None)
            if held is not None and name not in self.pointless:
                offer[name] = x.Remedy(name=name, by="family", ground=held.ground)
        for row in _WHEN:
            if row.alone is not None and row.alone(self):
                for name in row.remedies.split():
                    offer.setdefault(name, x.Remedy(name=name, by="fact", ground=row.ground))
        return tuple(offer.values())

    def _holds(self, row: _When) -> bool:
        return bool(
            (row.fact is not None and row.fact(self))
            or (row.frames and self.runs(row.frames))
            or any(is_error(row.ground, text[:2000]) for text in self._texts)
        )

    @cached_property
    def pointless(self) -> tuple[str, ...]:
        """Settings known to change nothing here."""
        if _is_outside(self.roots):
            kept = {"named", "host-memory"}
            return tuple(
                name for name, rows in _GROUNDS.items() if kept.isdisjoint(r.ground for r in rows)
            )
        ranks = [p for p in self.evidence.processes if p.role == "rank"]
        names = [
            name
            for name, (variable, values) in _ALREADY.items()
            if ranks and all(p.environment.get(variable, "").lower() in values for p in ranks)
        ]
        seen = self.evidence.why == "stall" and any(p.threads for p in ranks)
        workers = any(p.role == "worker" for p in self.evidence.processes)
        if seen and not workers and not self.runs(WORKER_LOOP, self.evidence.processes):
            names += _OF_WORKERS
        if ranks and all(p.os_threads == 1 for p in ranks):
            names.append("omp-1")
        threads = [fact.name for p in ranks for fact in p.thread_waits.values()]
        if threads and not any(name.startswith(_CUDA_THREADS) for name in threads):
            names += [name for name in _GROUNDS if name.startswith("nccl-")]
        return tuple(dict.fromkeys(names))


def _lacks_shm(s: Grounds) -> bool:
    return s.full_shm or any(end.signal == _SIGBUS for end in s.ends)


def _lock_left_by_fork(s: Grounds) -> bool:
    return any(isinstance(one, w.MutexWait) and one.owner_lives is False for one in s.roots)


_WHEN: tuple[_When, ...] = (
    _When("named", "lightning-ddp plain-retry", fact=lambda _: True),
    _When("dataloader",
        "num-workers-0 num-workers-1 persistent-workers persistent-workers-off loader-timeout",
        "* (torch/utils/data/*|torchdata/*)",
        lambda s: any(isinstance(one, x.BatchWait) for one in (*s.roots, *s.how))),
    _When("pin-memory-thread", "pin-memory-off persistent-workers-off",
        "_pin_memory_loop || *pin_memory*"),
    _When("fork", "spawn", WORKER_LOOP,
        lambda s: any(p.forked for p in s.involved) or _lock_left_by_fork(s)),
    _When("shared-tensors", "file-system-sharing",
        "* (*multiprocess*/reductions.py|*multiprocess*/resource_sharer.py|torch/storage.py)",
        _lacks_shm),
    _When("shared-memory", "bigger-shm", fact=_lacks_shm, alone=lambda s: s.full_shm),
    _When("host-memory", "less-host-memory", fact=lambda s: s.little_memory,
        alone=lambda s: s.oom_killed),
    _When("datasets", "num-proc-none preprocess-before-launch", "* (datasets/*)"),
    _When("tokenizers", "tokenizers-off tokenizers-slow",
        "* (tokenizers/*|transformers/tokenization*) || *rayon*|*tokenizers*|*tokenize*"),
    _When("huggingface-hub", "hf-offline hub-timeouts",
        "* (huggingface_hub/*|hf_xet/*|datasets/download/*|datasets/utils/file_utils.py)"),
    _When("xet", "xet-off", "* (hf_xet/*|huggingface_hub/*) || *xet*"),
    _When("remote-file", "open-in-worker",
        "* (h5py/*|tables/*|fsspec/*|s3fs/*|gcsfs/*|zarr/*|netCDF4/*|pyarrow/*) || *H5*"),
    _When("dead-lock-holder", "clear-stale-lock", alone=lambda s: s.dead_holder,
        fact=lambda s: s.dead_holder),
    _When("network-file-system", "local-cache", alone=lambda s: s.on_network,
        fact=lambda s: s.on_network),
    _When("collective", "debug-detail", fact=lambda s: s.in_collective),
    _When("nccl", "nccl-p2p-off nccl-ib-off nccl-socket-ifname single-process", "*nccl*|*NCCL*",
        lambda s: any(isinstance(one, w.DeviceWait) for one in s.roots)),
    _When("rendezvous", "rank-env-check single-process",
        "init_process_group|*rendezvous*|*TCPStore*|*CommInit*",
        lambda s: any(isinstance(one, x.StoreWait) for one in (*s.roots, *s.how))),
    _When("rank-left-early", "drop-last", fact=lambda s: s.others_meet
        and (any(not has_failed_end(end) for end in s.ends) or s.runs(frame_sets.LEAVES))),
    _When("rank-failed", "abort-all-on-failure",
        fact=lambda s: any(has_failed_end(end) for end in s.ends) and bool(s.how)),
    _When("evaluation", "no-eval",
        "evaluate*|evaluation_loop|prediction_*|predict*|validate*|validation*|eval_*|_eval*"),
    _When("slow-rank", "raise-ddp-timeout preprocess-before-launch",
        fact=lambda s: s.others_meet and not s.ends and not _is_outside(s.roots)),
    _When("save", "save-on-all-ranks sharded-state-dict",
        "*state_dict*|save*|_save*|*_checkpoint|*full_params*|full_tensor"),
    _When("exit", "destroy-process-group",
        f"{frame_sets.LEAVES} || *::~*|*ncclCommAbort*|*ncclCommDestroy*"),
    _When("spawn", "main-guard", "spawn_main"),
    _When("own-code", "none-user-fix", fact=lambda s: s.places[0]),
    _When("library-code", "upgrade-library", fact=lambda s: s.places[1]),
    _When("gpu-wait", "launch-blocking",
        "synchronize (torch/cuda/*) || *Synchronize*|*scalar_dense*",
        lambda s: any(isinstance(one, w.DeviceWait) for one in s.roots)),
    _When("gpu-fault", "other-node"),
    _When("gpu-memory", "allocator-expandable batch-halve-accumulate"),
    _When("host-memory", "batch-halve-accumulate", fact=lambda s: s.little_memory),
    _When("native-threads", "omp-1", f"{frame_sets.NATIVE_POOL} || *OMP*",
        lambda s: (s.evidence.host.load_per_core or 0.0) > _BUSY_PER_CORE or _lock_left_by_fork(s)),
    _When("wandb", "wandb-offline", "* (wandb/*)"),
    _When("compiler", "no-compile compile-threads-1",
        "* (torch/_inductor/*|torch/_dynamo/*|triton/*|torch/_functorch/*)"),
    _When("nan", "bf16"),
    _When("mps", "cpu-not-mps", "*mps*|*MPS*|*Metal*"),
)  # fmt: skip
"""Any row that names a remedy is enough. A remedy without one is in every attempt, or only on
a person's request."""
_GROUNDS: Mapping[str, tuple[_When, ...]] = {
    name: tuple(row for row in _WHEN if name in row.remedies.split())
    for row in _WHEN
    for name in row.remedies.split()
}
_ALREADY: Mapping[str, tuple[str, frozenset[str]]] = {
    "omp-1": ("OMP_NUM_THREADS", frozenset({"1"})),
    "tokenizers-off": ("TOKENIZERS_PARALLELISM", frozenset({"false", "0", "no", "off"})),
    "hf-offline": ("HF_HUB_OFFLINE", frozenset({"1", "true", "yes", "on"})),
    "xet-off": ("HF_HUB_DISABLE_XET", frozenset({"1", "true", "yes", "on"})),
    "wandb-offline": ("WANDB_MODE", frozenset({"offline", "disabled", "dryrun"})),
    "nccl-p2p-off": ("NCCL_P2P_DISABLE", frozenset({"1"})),
    "nccl-ib-off": ("NCCL_IB_DISABLE", frozenset({"1"})),
}
"""The variable by which a setting is already in effect."""
_OF_WORKERS = tuple(name for name, rows in _GROUNDS.items() if rows[0].ground == "dataloader")


def _is_outside(roots: tuple[x.Doing, ...]) -> bool:
    """Whether the training waits for an external party that no setting of its own changes."""
    for doing in roots:
        match doing:
            case w.Stopped() | w.TerminalWait() | w.FileWait(kind="fifo"):
                return True
            case w.FileLockWait(holders=holders) if holders:
                return True
            case x.End(signal=int(), sender="outside" | "wtrain"):
                return True
    return False
