"""from_pretrained of models and tokenizers: a place, and phase load around what it downloads."""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones

_CLASSES = {"PreTrainedModel": "load model", "PreTrainedTokenizerBase": "load tokenizer"}


def arm(module):
    """Hook into transformers.modeling_utils or .tokenization_utils_base."""
    for name, place in _CLASSES.items():
        if name in vars(module):
            milestones.around_method(vars(module)[name], "from_pretrained", place, L.PHASE_LOAD)
