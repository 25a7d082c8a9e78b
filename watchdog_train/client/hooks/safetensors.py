"""Saves and loads of safetensors files; it must keep the names that others import."""

from watchdog_train.client import phases, saves, settings
from watchdog_train.client.hooks import dynamo


def arm(module):
    """Hook into a safetensors.torch that has just been imported."""
    module.save_file = dynamo.remember(
        saves.recorded("safetensors", module.save_file, position=1, name="filename")
    )
    if settings.parameters("safetensors-off") is not None:
        module.load_file = _read_whole(module)
    module.load_file = dynamo.remember(phases.around_load(module.load_file))


def _read_whole(module):
    """load_file, which maps the file, by load, which is given all its bytes."""
    original, load = module.load_file, module.load

    def load_file(filename, device="cpu"):
        with open(filename, "rb") as file:
            tensors = load(file.read())
        settings.report("safetensors-off", True, "files are read as a whole")
        if str(device) != "cpu":
            tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        return tensors

    return phases.like(load_file, original)
