"""Settings that only a trial uses: they change what is trained, or how much of it."""

from __future__ import annotations

from watchdog_train.remedies.remedy import Remedy, cells

_ONLY_A_TRIAL = "a trial is not meant to be kept"


def _setting(name: str, summary: str, **how: object) -> Remedy:
    return Remedy(
        id=name,
        kind="training",
        summary=summary,
        changes=_ONLY_A_TRIAL,
        may_break=_ONLY_A_TRIAL,
        cells=cells("hook" if "in_process" in how else "environment"),
        **how,  # type: ignore[arg-type]
    )


_ALL = (
    _setting(
        "trial-workers-1",
        "loads data with one worker",
        in_process={"id": "trial-workers-1"},
    ),
    _setting("trial-no-logger", "switches loggers off", env={"WANDB_MODE": "disabled"}),
    _setting("trial-no-compile", "switches torch.compile off", env={"TORCHDYNAMO_DISABLE": "1"}),
    *(
        _setting(
            f"trial-examples-{size}",
            f"trains on the first {size} examples",
            in_process={"id": f"trial-examples-{size}", "examples": size},
        )
        for size in (2, 100, 1000)
    ),
)
TRIAL_SETTINGS: dict[str, Remedy] = {remedy.id: remedy for remedy in _ALL}
