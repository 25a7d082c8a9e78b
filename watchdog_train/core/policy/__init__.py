"""The settings of a run and its limits, typed, each with its unit and its reason."""

from watchdog_train.core.policy.limits import *
from watchdog_train.core.policy.settings import *
