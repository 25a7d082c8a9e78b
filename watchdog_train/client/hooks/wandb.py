"""wandb.init and wandb.finish are places: both wait for a server or a process of their own.

It must not touch what runs while training: wandb.log stays what it is.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, wandb_runs


def arm(module):
    """Hook into a wandb that has just been imported."""
    # Called from a callback it would else be judged by the limits of a first step.
    init = wandb_runs.wrapped(module.init)
    module.init = milestones.around("wandb.init", init, L.PHASE_STARTUP)
    module.finish = milestones.around("wandb.finish", module.finish)
