"""The remedies that truly work, as data. Applies nothing itself."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from watchdog_train.core.model import RemedyKind
from watchdog_train.core.plans import RemedySpec
from watchdog_train.core.policy import Policy
from watchdog_train.errors import WtrainError
from watchdog_train.remedies.user_fixes import USER_FIXES

Platform = Literal["linux", "darwin", "win32"]
EVERYWHERE: tuple[Platform, ...] = get_args(Platform)
KINDS: tuple[RemedyKind, ...] = get_args(RemedyKind)


class Remedy(RemedySpec, frozen=True, kw_only=True):
    """One safer setting with all a person wants to know before using it."""

    precondition: str = ""
    """When it may be applied, and who checks that; "" when it always may."""
    changes: str
    """What it changes for the result of the training."""
    may_break: str
    script_line: str = ""
    """The line that makes it permanent in the script, "" when there is nothing to keep."""
    script_lines: dict[str, str] = msgspec.field(default_factory=dict)
    """By framework ("trainer" for the Trainer of transformers), where it has a line of its own."""
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
        script_lines={"trainer": "TrainingArguments(..., dataloader_num_workers=0)"},
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
        script_lines={"trainer": "TrainingArguments(..., dataloader_pin_memory=False)"},
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
        script_lines={"trainer": "TrainingArguments(..., dataloader_persistent_workers=False)"},
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
        changes="rounding differs from compiled kernels",
        may_break="memory may no longer suffice; steps get slower",
        script_line="remove torch.compile(...), or TORCH_COMPILE_DISABLE=1",
        script_lines={"trainer": "TrainingArguments(..., torch_compile=False)"},
    ),
    Remedy(
        id="compile-threads-1",
        kind="execution",
        summary="compiles in the main process",
        env={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
        changes="nothing",
        may_break="nothing; compiling takes longer",
        script_line='os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # before the import',
    ),
    Remedy(
        id="nccl-p2p-off",
        kind="execution",
        summary="keeps NCCL off direct transfers between GPUs",
        env={"NCCL_P2P_DISABLE": "1"},
        precondition="training uses NCCL; without it this has no effect",
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
        precondition="for one attempt, because it is slow",
        changes="nothing",
        # torch 2.13, CPU: DistributedDataParallel over gloo ended so in 5 of 5 trials.
        may_break="with gloo ranks may end with a segmentation fault before their first step",
        needs_allow=True,
        script_line="TORCH_DISTRIBUTED_DEBUG=DETAIL python train.py",
    ),
    Remedy(
        id="launch-blocking",
        kind="execution",
        summary="waits for every CUDA kernel, so that the stack shows the one that hangs",
        env={"CUDA_LAUNCH_BLOCKING": "1"},
        evidence_only=True,
        precondition="for one attempt, because it is slow",
        changes="nothing",
        may_break="nothing; it mends nothing either, it names the kernel",
        script_line="CUDA_LAUNCH_BLOCKING=1 python train.py",
        platforms=("linux", "win32"),
    ),
    Remedy(
        id="cpu-not-mps",
        kind="device",
        summary="trains on the CPU",
        env={"DISABLE_MPS": "1"},  # read by Lightning's MPSAccelerator
        in_process=_in_process("cpu-not-mps"),
        precondition='the device is chosen by asking whether MPS is there; .to("mps") stays',
        changes="rounding; the random numbers of the CPU are others",
        may_break="nothing; steps get slower",
        script_line='torch.device("cpu") in place of "mps"',
        script_lines={"trainer": "TrainingArguments(..., use_cpu=True)"},
        platforms=("darwin",),
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
    ),
)

CATALOGUE: Mapping[str, Remedy] = {remedy.id: remedy for remedy in _REMEDIES}


def available(platform: str = sys.platform) -> dict[str, Remedy]:
    """The remedies of this platform: what the ladder may choose from."""
    return {name: item for name, item in CATALOGUE.items() if platform in item.platforms}


def script_lines(framework: str | None = None) -> dict[str, str]:
    """Remedy id -> the line for the training script that makes the setting for good.

    Args:
        framework: a key of Remedy.script_lines; None: the line for a plain torch script.
    """
    found = {
        name: item.script_lines.get(framework or "", item.script_line)
        for name, item in CATALOGUE.items()
    }
    return {name: line for name, line in found.items() if line}


def remedy_words() -> dict[str, str]:
    """Remedy id -> what it does and the line for the script, for the reader of a bundle."""
    return dict(USER_FIXES) | {
        name: "; ".join(filter(None, (item.summary, item.script_line)))
        for name, item in CATALOGUE.items()
    }


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
