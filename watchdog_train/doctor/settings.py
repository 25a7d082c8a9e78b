"""Variables of the environment that do not do what people think, and what a night wants set.

Pure but for its callers: everything is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchdog_train.doctor import Check

_FALSE = {"", "0", "false", "no", "off"}
_TRUE = {"1", "true", "yes", "on"}


TRAPS: tuple[tuple[str, set[str] | None, str, str], ...] = (
    (
        "CUDA_LAUNCH_BLOCKING",
        _TRUE,
        "every kernel is waited for: good for finding an error, slow for a night",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    (
        "NCCL_ASYNC_ERROR_HANDLING",
        None,
        "an old name that newer versions of torch ignore or warn of",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING is its name",
    ),
    (
        "NCCL_BLOCKING_WAIT",
        None,
        "an old name that newer versions of torch ignore or warn of",
        "TORCH_NCCL_BLOCKING_WAIT is its name",
    ),
    (
        "KMP_DUPLICATE_LIB_OK",
        _TRUE,
        "two copies of the OpenMP runtime are let run side by side: it may hang or be wrong",
        "unset it, and install what brings the second copy from the same place as torch",
    ),
    (
        "WANDB_MODE",
        {"online"},
        "a network that goes away at night holds wandb's calls",
        "WANDB_MODE=offline, and `wandb sync` in the morning",
    ),
    (
        "PYTORCH_ENABLE_MPS_FALLBACK",
        _FALSE,
        "0 leaves operations that MPS lacks as errors; it is on only with 1",
        "PYTORCH_ENABLE_MPS_FALLBACK=1, set before torch is imported",
    ),
    (
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        {"0", "0.0"},
        "0 means no limit, not none: the machine swaps, or it kills the training",
        "unset it, or take 0.7",
    ),
    (
        "TOKENIZERS_PARALLELISM",
        {"true", "1"},
        "threads of a tokenizer and the fork of a DataLoader make a known deadlock",
        "TOKENIZERS_PARALLELISM=false",
    ),
    (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        _FALSE,
        "torchrun shares its store with the ranks: many of its restarts never come back then",
        "unset it: wtrain sets it to 1 for torchrun",
    ),
    (
        "PYTHONOPTIMIZE",
        None,
        "assertions of the training and its libraries are left out",
        "unset PYTHONOPTIMIZE",
    ),
)
"""A variable, the values that hurt (in small letters; None: any), what they do, and the mend.

Each with the source of its rule in docs/remedies.md, or in the library's own documentation."""


def traps(environment: Mapping[str, str]) -> Iterator[Check]:
    """One line for each trap that is set; one if none is."""
    found = False
    for name, values, says, mend in TRAPS:
        value = environment.get(name)
        if value is not None and (values is None or value.strip().lower() in values):
            found = True
            shown = f"{name}={value[:40]}"
            yield Check(name=shown, status="warning", says=says, mend=mend)
    if not found:
        says = "no variable is set that is known to mean something else than it seems"
        yield Check(name="environment", status="ok", says=says)


def threads(environment: Mapping[str, str], cores: int) -> Check:
    """Threads of one process against the cores there are."""
    text = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    each = int(text) if text.isdigit() and 0 < int(text) < 10_000 else None
    if each is None or each <= cores:
        return Check(
            name="threads", status="ok", says=f"{cores} cores, {each or 'all'} of them used"
        )
    says = f"OMP_NUM_THREADS={each} on {cores} cores: threads wait for each other"
    mend = f"OMP_NUM_THREADS={cores}, divided by the ranks of this machine"
    return Check(name="threads", status="warning", says=says, mend=mend)
