"""Lock files of torch's extensions and of filelock: a stale one of this run can be removed."""

from watchdog_train.client import locks


def arm(module):
    """Hook into a torch.utils.file_baton or filelock that has just been imported."""
    if module.__name__ == "filelock":
        locks.around_soft_lock(module.SoftFileLock)
    else:
        locks.around_baton(module.FileBaton)
