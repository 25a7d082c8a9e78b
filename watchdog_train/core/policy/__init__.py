"""The settings of a run and its limits, typed, each with its unit and its reason."""

from watchdog_train.core.policy.limits import Detection, Limits, Timing, WaitLimits
from watchdog_train.core.policy.settings import (
    Evidence,
    Job,
    Metrics,
    Notify,
    Output,
    Policy,
    Recovery,
    Stopping,
)

__all__ = [
    "Detection",
    "Evidence",
    "Job",
    "Limits",
    "Metrics",
    "Notify",
    "Output",
    "Policy",
    "Recovery",
    "Stopping",
    "Timing",
    "WaitLimits",
]
