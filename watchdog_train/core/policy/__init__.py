"""Every threshold and choice of a run, typed, each with its unit and its reason.

`config.yaml`, the presets and docs/config.md are this package in other clothes: the text of each
field is its `Annotated` description, so it is written once. All times are seconds.
"""

from typing import Annotated

from msgspec import Meta

from watchdog_train.core.policy.base import Section, positive
from watchdog_train.core.policy.detection import Detection
from watchdog_train.core.policy.job import Job
from watchdog_train.core.policy.patience import Patience
from watchdog_train.core.policy.recovery import Recovery, Stopping
from watchdog_train.core.policy.telling import Metrics, Notify, Output

__all__ = [
    "Detection",
    "Evidence",
    "Job",
    "Metrics",
    "Notify",
    "Output",
    "Patience",
    "Policy",
    "Recovery",
    "Stopping",
]


class Evidence(Section):
    """How much time evidence may take."""

    look_s: Annotated[float, positive("the cheap look at a suspicion, all processes")] = 8.0
    total_s: Annotated[float, positive("a whole bundle; then it closes with what is there")] = 20.0
    process_s: Annotated[float, positive("one process with one tool")] = 10.0


class Policy(Section):
    """All settings of a run."""

    name: Annotated[str | None, Meta(description="name of the run; null: the script's")] = None
    runs_dir: Annotated[
        str | None, Meta(description="where run directories go; null: ./wtrain-runs")
    ] = None
    detection: Detection = Detection()
    patience: Patience = Patience()
    stopping: Stopping = Stopping()
    recovery: Recovery = Recovery()
    job: Job = Job()
    evidence: Evidence = Evidence()
    output: Output = Output()
    notify: Notify = Notify()
    metrics: Metrics = Metrics()
