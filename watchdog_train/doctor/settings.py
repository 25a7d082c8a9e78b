"""Variables of the environment that do not do what people think, and what a night wants set.

Pure but for its callers: everything is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watchdog_train.doctor import Check

_FALSE = {"", "0", "false", "no", "off"}
_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A variable with a value that means something else than it looks like, or hurts at night."""

    name: str
    values: frozenset[str] | None
    """In small letters; None: whatever it is set to."""
    says: str
    mend: str


TRAPS = (
    Trap(
        name="CUDA_LAUNCH_BLOCKING",
        values=frozenset(_TRUE),
        says="every kernel is waited for: good for finding an error, slow for a night",
        mend="unset CUDA_LAUNCH_BLOCKING",
    ),
    Trap(
        name="NCCL_ASYNC_ERROR_HANDLING",
        values=None,
        says="an old name that newer versions of torch ignore or warn of",
        mend="TORCH_NCCL_ASYNC_ERROR_HANDLING is its name",
    ),
    Trap(
        name="NCCL_BLOCKING_WAIT",
        values=None,
        says="an old name that newer versions of torch ignore or warn of",
        mend="TORCH_NCCL_BLOCKING_WAIT is its name",
    ),
    Trap(
        name="KMP_DUPLICATE_LIB_OK",
        values=frozenset(_TRUE),
        says="two copies of the OpenMP runtime are let run side by side: it may hang or be wrong",
        mend="unset it, and install what brings the second copy from the same place as torch",
    ),
    Trap(
        name="WANDB_MODE",
        values=frozenset({"online"}),
        says="a network that goes away at night holds wandb's calls",
        mend="WANDB_MODE=offline, and `wandb sync` in the morning",
    ),
    Trap(
        name="PYTORCH_ENABLE_MPS_FALLBACK",
        values=frozenset(_FALSE),
        says="0 leaves operations that MPS lacks as errors; it is on only with 1",
        mend="PYTORCH_ENABLE_MPS_FALLBACK=1, set before torch is imported",
    ),
    Trap(
        name="PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        values=frozenset({"0", "0.0"}),
        says="0 means no limit, not none: the machine swaps, or it kills the training",
        mend="unset it, or take 0.7",
    ),
    Trap(
        name="TOKENIZERS_PARALLELISM",
        values=frozenset({"true", "1"}),
        says="threads of a tokenizer and the fork of a DataLoader make a known deadlock",
        mend="TOKENIZERS_PARALLELISM=false",
    ),
    Trap(
        name="TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        values=frozenset(_FALSE),
        says="torchrun shares its store with the ranks: many of its restarts never come back then",
        mend="unset it: wtrain sets it to 1 for torchrun",
    ),
    Trap(
        name="PYTHONOPTIMIZE",
        values=None,
        says="assertions of the training and its libraries are left out",
        mend="unset PYTHONOPTIMIZE",
    ),
)
"""Each with the source of its rule in docs/remedies.md, or in the library's own documentation."""


def traps(environment: Mapping[str, str]) -> Iterator[Check]:
    """One line for each trap that is set; one if none is."""
    found = False
    for trap in TRAPS:
        value = environment.get(trap.name)
        if value is None or (trap.values is not None and value.strip().lower() not in trap.values):
            continue
        found = True
        yield Check(name=f"{trap.name}={value[:40]}", status="warning", says=trap.says,
                    mend=trap.mend)  # fmt: skip
    if not found:
        says = "no variable is set that is known to mean something else than it seems"
        yield Check(name="environment", status="ok", says=says)


def threads(environment: Mapping[str, str], cores: int, ranks: int) -> Check:
    """Threads of each rank against the cores there are."""
    text = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    each = int(text) if text.isdigit() and 0 < int(text) < 10_000 else None
    if ranks < 2 and (each is None or each <= cores):
        return Check(
            name="threads", status="ok", says=f"{cores} cores, {each or 'all'} of them used"
        )
    wanted = max(1, cores // max(1, ranks))
    if each is None:
        says = f"{ranks} ranks on {cores} cores, and OMP_NUM_THREADS is not set (torchrun takes 1)"
        return Check(name="threads", status="warning", says=says, mend=f"OMP_NUM_THREADS={wanted}")
    says = f"{ranks} ranks with {each} threads each on {cores} cores"
    too_many = ranks * each > cores
    return Check(
        name="threads",
        status="warning" if too_many else "ok",
        says=says,
        mend=f"OMP_NUM_THREADS={wanted}: more only wait for each other" if too_many else None,
    )
