"""The remedies that truly work, as data, and what only the user can mend. Applies nothing itself."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from watchdog_train.core.model import RemedyKind
from watchdog_train.core.plans import RemedySpec
from watchdog_train.core.policy import Policy
from watchdog_train.errors import WtrainError

Platform = Literal["linux", "darwin", "win32"]
EVERYWHERE: tuple[Platform, ...] = get_args(Platform)
KINDS: tuple[RemedyKind, ...] = get_args(RemedyKind)


class Remedy(RemedySpec, frozen=True, kw_only=True):
    """One safer setting with all a person wants to know before using it."""

    precondition: str
    """When it may be applied, and who checks that."""
    changes: str
    """What it changes for the result of the training."""
    may_break: str
    script_line: str
    """The line that makes it permanent in the script."""
    platforms: tuple[Platform, ...] = EVERYWHERE


def _in_process(name: str, **parameters: Any) -> dict[str, Any]:
    return {"id": name, **parameters}


_REMEDIES = (
    Remedy(
        id="num-workers-0",
        kind="execution",
        summary="loads data in the main process",
        in_process=_in_process("num-workers-0"),
        precondition="map-style datasets without worker_init_fn; the hook leaves others alone",
        changes="random augmentation draws from the main process's generator",
        may_break="nothing; loading no longer overlaps with computing, so steps may get slower",
        script_line="DataLoader(..., num_workers=0)",
    ),
    Remedy(
        id="spawn",
        kind="execution",
        summary="starts loader workers by spawn instead of fork",
        in_process=_in_process("spawn"),
        precondition="a DataLoader with workers",
        changes="nothing",
        may_break="datasets that cannot be pickled, and scripts without a __main__ guard",
        script_line='DataLoader(..., multiprocessing_context="spawn")',
    ),
    Remedy(
        id="omp-1",
        kind="execution",
        summary="one thread for OpenMP, MKL, OpenBLAS and torch",
        env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        in_process=_in_process("omp-1"),
        precondition="none",
        changes="sums on the CPU may be taken in another order",
        may_break="nothing; computing on the CPU gets slower",
        script_line="torch.set_num_threads(1)  # and OMP_NUM_THREADS=1 before Python starts",
    ),
    Remedy(
        id="pin-memory-off",
        kind="execution",
        summary="does without the pinning thread",
        in_process=_in_process("pin-memory-off"),
        precondition="a DataLoader with pin_memory=True",
        changes="nothing",
        may_break="nothing; copies to the GPU no longer overlap",
        script_line="DataLoader(..., pin_memory=False)",
    ),
    Remedy(
        id="persistent-workers-off",
        kind="execution",
        summary="starts loader workers anew for every epoch",
        in_process=_in_process("persistent-workers-off"),
        precondition="a DataLoader with persistent_workers=True",
        changes="nothing",
        may_break="caches that a dataset keeps in its workers; every epoch starts later",
        script_line="DataLoader(..., persistent_workers=False)",
    ),
    Remedy(
        id="loader-timeout",
        kind="execution",
        summary="lets a silent loader worker end the attempt with an error",
        in_process=_in_process("loader-timeout", seconds=300),
        precondition="a DataLoader with workers and without a timeout",
        changes="nothing",
        may_break="a batch that takes longer than 300 s becomes an error",
        script_line="DataLoader(..., timeout=300)",
    ),
    Remedy(
        id="file-system-sharing",
        kind="execution",
        summary="shares tensors between processes by named files",
        in_process=_in_process("file-system-sharing"),
        precondition="none",
        changes="nothing",
        may_break="killed processes leave segments in /dev/shm; wtrain removes those of its run",
        script_line='torch.multiprocessing.set_sharing_strategy("file_system")',
        platforms=("linux", "darwin"),
    ),
    Remedy(
        id="num-proc-none",
        kind="execution",
        summary="maps and filters datasets in the main process",
        in_process=_in_process("num-proc-none"),
        precondition="datasets' map or filter with num_proc",
        changes="nothing",
        may_break="nothing; preprocessing takes longer",
        script_line="dataset.map(..., num_proc=None)",
    ),
    Remedy(
        id="tokenizers-off",
        kind="execution",
        summary="switches the tokenizers' own threads off",
        env={"TOKENIZERS_PARALLELISM": "false"},
        precondition="none",
        changes="nothing",
        may_break="nothing; tokenising in the main process gets slower",
        script_line='os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before the import',
    ),
    Remedy(
        id="hf-offline",
        kind="execution",
        summary="takes models and data from the local cache only",
        env={"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        precondition="the cache is complete; it is taken back when training cannot begin with it",
        changes="nothing, as long as the cache holds the same revision",
        may_break="whatever is not in the cache",
        script_line='os.environ["HF_HUB_OFFLINE"] = "1"  # before the import',
    ),
    Remedy(
        id="xet-off",
        kind="execution",
        summary="downloads by plain HTTP instead of Xet",
        env={"HF_HUB_DISABLE_XET": "1"},
        precondition="none",
        changes="nothing",
        may_break="nothing; large downloads may be slower",
        script_line='os.environ["HF_HUB_DISABLE_XET"] = "1"  # before the import',
    ),
    Remedy(
        id="wandb-offline",
        kind="execution",
        summary="keeps wandb's data on disk instead of sending it",
        env={"WANDB_MODE": "offline"},
        needs_allow=True,
        precondition="must be allowed (--allow wandb-offline), because the dashboard goes quiet",
        changes="nothing in the training; the dashboard shows nothing until `wandb sync`",
        may_break="sweeps and alerts that need the server",
        script_line='wandb.init(mode="offline")',
    ),
    Remedy(
        id="no-compile",
        kind="execution",
        summary="runs without torch.compile",
        env={"TORCH_COMPILE_DISABLE": "1"},
        precondition="none",
        changes="rounding differs from compiled kernels",
        may_break="memory may no longer suffice; steps get slower",
        script_line="remove torch.compile(...), or TORCH_COMPILE_DISABLE=1",
    ),
    Remedy(
        id="compile-threads-1",
        kind="execution",
        summary="compiles in the main process",
        env={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
        precondition="none",
        changes="nothing",
        may_break="nothing; compiling takes longer",
        script_line='os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # before the import',
    ),
    Remedy(
        id="nccl-p2p-off",
        kind="execution",
        summary="keeps NCCL off direct transfers between GPUs",
        env={"NCCL_P2P_DISABLE": "1"},
        precondition="none; without NCCL it has no effect",
        changes="nothing",
        may_break="nothing; collectives get slower",
        script_line='os.environ["NCCL_P2P_DISABLE"] = "1"  # before init_process_group',
        platforms=("linux",),
    ),
    Remedy(
        id="debug-detail",
        kind="execution",
        summary="has torch check every collective, to name the rank that differs",
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        evidence_only=True,
        precondition="none; for one attempt, because it is slow",
        changes="nothing",
        may_break="nothing; it mends nothing either, it names the culprit",
        script_line="TORCH_DISTRIBUTED_DEBUG=DETAIL python train.py",
    ),
    Remedy(
        id="launch-blocking",
        kind="execution",
        summary="waits for every CUDA kernel, so that the stack shows the one that hangs",
        env={"CUDA_LAUNCH_BLOCKING": "1"},
        evidence_only=True,
        precondition="none; for one attempt, because it is slow",
        changes="nothing",
        may_break="nothing; it mends nothing either, it names the kernel",
        script_line="CUDA_LAUNCH_BLOCKING=1 python train.py",
        platforms=("linux", "win32"),
    ),
    Remedy(
        id="mps-fallback",
        kind="device",
        summary="runs operations that MPS lacks on the CPU",
        env={"PYTORCH_ENABLE_MPS_FALLBACK": "1"},
        precondition="training on MPS",
        changes="rounding of those operations",
        may_break="nothing; those operations get slower",
        script_line='os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"  # before the import',
        platforms=("darwin",),
    ),
    Remedy(
        id="plain-retry",
        kind="execution",
        summary="starts again with nothing changed",
        precondition="the evidence says that the trouble may pass",
        changes="nothing",
        may_break="nothing",
        script_line="(none)",
    ),
)

CATALOGUE: Mapping[str, Remedy] = {remedy.id: remedy for remedy in _REMEDIES}

USER_FIXES: Mapping[str, str] = {
    "abort-all-on-failure": "End every rank when one fails: start with torchrun, which does that, "
    "and let exceptions leave main() instead of catching them on one rank.",
    "batch-halve-accumulate": "Halve per_device_train_batch_size and double "
    "gradient_accumulation_steps, so that their product stays the same.",
    "bf16": "Train with bf16=True instead of fp16=True, or clip gradients and lower the rate.",
    "bigger-shm": "Give the container more shared memory: docker run --shm-size=8g (or --ipc=host), "
    "or an emptyDir with medium: Memory at /dev/shm in Kubernetes.",
    "bounded-join-kill": "Training had ended and only its exit hangs: wtrain ends such a process and "
    "counts it as a success.",
    "clear-stale-lock": "Remove the named lock file once you have made sure that no process that "
    "made it is alive on any machine.",
    "cpu": "Run a few steps on the CPU (use_cpu=True in TrainingArguments) to see whether the device "
    "is to blame.",
    "cpu-not-mps": "Train on the CPU: use_cpu=True in TrainingArguments, accelerator='cpu' in "
    "Lightning, or torch.device('cpu') in place of 'mps'.",
    "destroy-process-group": "Call torch.distributed.destroy_process_group() on every rank before "
    "main() ends.",
    "drop-last": "Give every rank the same number of batches: DataLoader(..., drop_last=True) or "
    "a DistributedSampler(drop_last=True).",
    "free-port": "Choose another port: torchrun --master-port=29501, or --standalone on one node.",
    "less-host-memory": "Use less memory on the host: fewer workers, a smaller prefetch_factor, "
    "streaming data, keep_in_memory=False, writer_batch_size=100 in datasets.map.",
    "local-cache": "Keep caches and data on a local disk: HF_HOME, TORCH_EXTENSIONS_DIR, "
    "TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR below /tmp or a scratch disk.",
    "main-guard": 'Put the start of the script below `if __name__ == "__main__":`, because spawned '
    "processes import the script again.",
    "nccl-socket-ifname": "Name the network interface: NCCL_SOCKET_IFNAME=eth0 (and "
    "GLOO_SOCKET_IFNAME) on every node.",
    "no-eval": 'Train without evaluation to see whether it is to blame: eval_strategy="no", '
    "with load_best_model_at_end=False.",
    "none-user-fix": "Only the code can change this: see the frames in the diagnosis.",
    "open-in-worker": "Open the file in the worker, not before the fork: in __getitem__ "
    "(`if self.file is None: self.file = h5py.File(...)`) or in worker_init_fn.",
    "other-node": "Run on another machine: this one's GPU or driver is at fault.",
    "persistent-workers": "Keep workers between epochs: DataLoader(..., persistent_workers=True).",
    "preprocess-before-launch": "Prepare the data once in a run of its own (python prepare.py) and "
    "let every rank load the result.",
    "raise-ddp-timeout": "Give slow work on rank 0 more time: ddp_timeout=7200 in TrainingArguments, "
    "or init_process_group(timeout=timedelta(hours=2)).",
    "rank-env-check": "Check RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every node: each rank "
    "must be there exactly once, and all must name the same address.",
    "save-on-all-ranks": "Call the save on every rank: take `if rank == 0:` away from around "
    "state_dict() and save_checkpoint(); only the writing may be rank 0's.",
    "sharded-state-dict": "Save sharded: StateDictType.SHARDED_STATE_DICT, or "
    "torch.distributed.checkpoint.",
    "single-process": "Run on one process to see whether the code or the communication is to blame: "
    "CUDA_VISIBLE_DEVICES=0 python train.py.",
    "upgrade-library": "Upgrade the library named in the diagnosis: the hang is a known one that "
    "later versions have mended.",
}
"""What only the user can mend: the line or the setting to change."""


def available(platform: str = sys.platform) -> dict[str, Remedy]:
    """The remedies of this platform: what the ladder may choose from."""
    return {name: item for name, item in CATALOGUE.items() if platform in item.platforms}


def refuse_unknown(policy: Policy, platform: str = sys.platform) -> None:
    """Check the remedies that the user named, all problems at once.

    Raises:
        WtrainError: unknown ids, ids of another platform, or one both asked for and forbidden.
    """
    recovery = policy.recovery
    problems = [
        *_unknown("--with", recovery.with_remedies, CATALOGUE),
        *_unknown("--without", recovery.without_remedies, CATALOGUE),
        *_unknown("--allow", recovery.allow, (*CATALOGUE, *KINDS)),
    ]
    for name in recovery.with_remedies:
        if name in CATALOGUE and platform not in CATALOGUE[name].platforms:
            problems.append(f"--with {name}: does nothing on {platform}")
        if name in recovery.without_remedies:
            problems.append(f"--with {name}: is forbidden by --without at the same time")
    if problems:
        raise WtrainError(
            "\n".join(problems),
            hint="`wtrain remedies` lists them",
            reference="remedy-unknown",
        )


def _unknown(option: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    known = tuple(known)
    problems = []
    for name in names:
        if name in known:
            continue
        if name in USER_FIXES:
            problems.append(f"{option} {name}: only you can do that: {USER_FIXES[name]}")
            continue
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        problems.append(f"{option} {name}: there is no such remedy{meant}")
    return problems
