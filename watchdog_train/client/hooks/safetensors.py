"""Saves and loads of safetensors files; it must keep the names that others import."""

from watchdog_train.client import phases, saves
from watchdog_train.client.hooks import dynamo


def arm(module):
    """Hook into a safetensors.torch that has just been imported."""
    module.save_file = dynamo.remember(
        saves.recorded("safetensors", module.save_file, position=1, name="filename")
    )
    module.load_file = dynamo.remember(phases.around_load(module.load_file))
