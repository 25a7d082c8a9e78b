"""cpu: the training runs on the CPU, whatever device it asks for.

Devices are hidden, and what is asked for on another one is made on the CPU. It must change nothing
but the device, and what cannot be without one: fp16, NCCL, a list of GPUs.
"""

import os
import sys

from watchdog_train.client import phases, settings, training_settings

ID = "cpu"
_OTHERS = ("cuda", "mps", "xpu", "hip")

_MODULES = ("accelerator", "mps", "xpu")
_turns = [0]


def apply(torch):
    """Hide the devices and redirect requests for them, in the thread that imports torch."""
    hidden = {"is_available": False, "device_count": 0, "current_accelerator": None}
    quiet = dict.fromkeys(("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"))
    shown = {"current_device": 0, "get_device_name": "cpu", "is_bf16_supported": True}
    for module in (torch.cuda, torch.backends.mps, *map(torch.__dict__.get, _MODULES)):
        for name, value in {**hidden, **quiet, **shown}.items():
            if hasattr(module, name):
                setattr(module, name, _answers(getattr(module, name), value))
    load = _loads(torch.load)
    for place in (torch, sys.modules["torch.serialization"]):
        setattr(place, "load", load)  # noqa: B010 - a module to mypy
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel.__init__ = _given(parallel.__init__, device_ids=None, output_device=None)
    group = sys.modules.get("torch.distributed.distributed_c10d")
    if group is not None:
        join = _given(group.init_process_group, backend="gloo", device_id=None)
        for place in (group, torch.distributed):
            setattr(place, "init_process_group", join)  # noqa: B010
    _redirect(torch)
    training_settings.after_first_step(_told)


def _told(device):
    asked = ", another device was asked for %d times" % _turns[0] if _turns[0] else ""
    settings.report(ID, device == "cpu", "parameters are on " + device + asked)


def _turned(value, number=False):
    """The device in place of this one; as an argument `device` a number is one, too."""
    kind = getattr(value, "type", value)
    other = isinstance(kind, str) and kind.partition(":")[0] in _OTHERS
    if not other and not (number and type(value) is int):
        return value
    if not _turns[0]:
        settings.report(ID, True, "parameters are on cpu, %s was asked for" % (value,))
    _turns[0] += 1
    return "cpu"


def _redirect(torch):
    tensor, parse = torch.Tensor, torch._C._nn._parse_to
    stays = [getattr(tensor, name) for name in (*_OTHERS, "pin_memory") if hasattr(tensor, name)]

    class OnCpu(sys.modules["torch.overrides"].TorchFunctionMode):  # type: ignore[misc]
        """Every function of torch that is given a device."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if function in stays:
                _turns[0] += 1
                return args[0]
            if function is torch.device and args and _turned(args[0], True) is not args[0]:
                args = ("cpu",)
            elif function is parse and args:  # of Module.to
                args = (_turned(args[0], True), *args[1:])
            elif function is tensor.to and len(args) > 1:
                args = (args[0], _turned(args[1], True), *args[2:])
            for name in ("device", "type"):
                if name in kwargs:
                    kwargs = dict(kwargs, **{name: _turned(kwargs[name], name == "device")})
            return function(*args, **kwargs)

    OnCpu().__enter__()


def _answers(original, value):
    return phases.like(lambda *_args, **_kwargs: value, original)


def _loads(original):
    def load(*args, **kwargs):
        # What was saved on a GPU goes there automatically.
        if len(args) < 2 and not callable(kwargs.get("map_location")):
            kwargs["map_location"] = "cpu"
        elif len(args) > 1 and not callable(args[1]):
            args = (args[0], "cpu", *args[2:])
        return original(*args, **kwargs)

    return phases.like(load, original)


def _given(original, **values):
    return settings.with_changes(original, lambda given: given.update(values), original.__name__)


def of_transformers(arguments):

    @phases.replacing(arguments, "__post_init__")
    def post_init(original, self, *args, **kwargs):
        self.use_cpu = True
        self.fp16 = False
        if getattr(self, "tf32", None):
            self.tf32 = None
        return original(self, *args, **kwargs)


def of_accelerate(accelerator):

    @phases.replacing(accelerator, "__init__")
    def init(original, self, *args, **kwargs):
        kwargs["cpu"] = True
        if str(kwargs.get("mixed_precision")) == "fp16":
            kwargs["mixed_precision"] = "no"
        if os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16":
            os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
        original(self, *args, **kwargs)


def of_lightning(trainer):
    """The Trainer of Lightning: the CPU, as many processes as it was given GPUs."""

    @phases.replacing(trainer, "__init__")
    def init(original, self, *args, **kwargs):
        kwargs["accelerator"] = "cpu"
        devices = kwargs.get("devices")
        if isinstance(devices, (list, tuple)):
            kwargs["devices"] = len(devices)
        elif devices in (None, -1, "-1", "auto"):
            kwargs["devices"] = 1
        original(self, *args, **kwargs)
