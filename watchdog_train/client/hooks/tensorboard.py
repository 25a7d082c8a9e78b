"""Opening a TensorBoard writer is a place: its directory may be on storage that does not answer."""

from watchdog_train.client import milestones


def arm(module):
    """Hook into a torch.utils.tensorboard.writer that has just been imported."""
    milestones.around_method(module.SummaryWriter, "__init__", "SummaryWriter")
