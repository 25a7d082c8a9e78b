"""from_pretrained of models and tokenizers: a place, and phase load around what it downloads."""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, phases, settings

_CLASSES = {"PreTrainedModel": "load model", "PreTrainedTokenizerBase": "load tokenizer"}


def arm(module):
    """Hook into transformers.modeling_utils or .tokenization_utils_base."""
    for name, place in _CLASSES.items():
        if name in vars(module):
            if name == "PreTrainedModel" and settings.parameters("safetensors-off") is not None:
                _read_whole(vars(module)[name])
            milestones.around_method(vars(module)[name], "from_pretrained", place, L.PHASE_LOAD)


def _read_whole(model):
    """Weights are read instead of mapped: an argument of transformers 5, unless it is given."""
    original = model.__dict__["from_pretrained"].__func__
    inner = original
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = inner.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def from_pretrained(*args, **kwargs):
        if "disable_mmap" not in known:
            settings.report("safetensors-off", False, "this transformers cannot be asked for it")
        elif kwargs.get("disable_mmap") is None:
            kwargs["disable_mmap"] = True
            settings.report("safetensors-off", True, "disable_mmap=True")
        return original(*args, **kwargs)

    model.from_pretrained = classmethod(phases.like(from_pretrained, original))
