"""from_pretrained of models and tokenizers: a place, and phase load around what it downloads."""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, phases, settings

_CLASSES = {"PreTrainedModel": "load model", "PreTrainedTokenizerBase": "load tokenizer"}


def arm(module):
    """Hook into transformers.modeling_utils or .tokenization_utils_base."""
    for name, place in _CLASSES.items():
        if name in vars(module):
            if name == "PreTrainedModel" and settings.parameters("safetensors-off") is not None:
                _without_safetensors(vars(module)[name])
            milestones.around_method(vars(module)[name], "from_pretrained", place, L.PHASE_LOAD)


def _without_safetensors(model):
    """Weights come from the other file, where there is one."""
    original = model.__dict__["from_pretrained"].__func__

    def from_pretrained(*args, **kwargs):
        try:
            loaded = original(*args, **dict(kwargs, use_safetensors=False))
        except (OSError, ValueError) as error:
            settings.report("safetensors-off", False, "no other weights: " + str(error)[:200])
            return original(*args, **kwargs)
        settings.report("safetensors-off", True, "use_safetensors=False")
        return loaded

    model.from_pretrained = classmethod(phases.like(from_pretrained, original))
