"""Wrapping a model in DDP or FSDP is a place where ranks wait for each other."""

from watchdog_train.client import milestones

_CLASSES = {
    "DistributedDataParallel": "wrap in DDP",
    "FullyShardedDataParallel": "wrap in FSDP",
}


def arm(module):
    """Hook into a module that has just been imported: of DDP, of FSDP, or of fully_shard."""
    for name, place in _CLASSES.items():
        if name in vars(module):
            milestones.around_method(vars(module)[name], "__init__", place)
    if "fully_shard" in vars(module):
        module.fully_shard = milestones.around("wrap in FSDP", module.fully_shard)
