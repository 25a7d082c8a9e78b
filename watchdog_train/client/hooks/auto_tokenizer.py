"""AutoTokenizer without threads of its own, if the plan asks for it and there is a slow tokenizer.

What the slow one refuses the fast one does: it must raise nothing that would not have been raised.
"""

from watchdog_train.client import libraries, phases, settings

_NAME = "tokenizers-slow"


def arm(module):
    """Hook into a transformers.models.auto.tokenization_auto that has just been imported."""
    if settings.parameters(_NAME) is None:
        return
    if libraries.version_numbers(libraries.version_of("transformers"))[0] >= 5:
        settings.report(_NAME, False, "transformers 5 has fast tokenizers only: tokenizers-off")
        return
    original = module.AutoTokenizer.__dict__["from_pretrained"].__func__

    def from_pretrained(*args, **kwargs):
        try:
            tokenizer = original(*args, **dict(kwargs, use_fast=False))
        except Exception as error:
            settings.report(_NAME, False, "no slow tokenizer: " + type(error).__name__)
            return original(*args, **kwargs)
        slow = not getattr(tokenizer, "is_fast", False)
        said = "use_fast=False: " + type(tokenizer).__name__
        settings.report(_NAME, slow, said if slow else said + " has no slow version")
        return tokenizer

    module.AutoTokenizer.from_pretrained = classmethod(phases.like(from_pretrained, original))
