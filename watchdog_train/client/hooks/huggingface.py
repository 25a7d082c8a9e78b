"""Data, models and files of Hugging Face's libraries: loads, downloads and saves as phases.

The metadata request of the hub belongs to phase download: a server that takes the connection and
never answers holds a training there, before any transfer has begun.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import (
    libraries,
    loader_settings,
    milestones,
    notes,
    phases,
    saves,
    settings,
)


def datasets(module):
    """Hook into datasets.arrow_dataset or datasets.load; num-proc-none is applied here."""
    if module.__name__ == "datasets.load":
        for name in ("load_dataset", "load_from_disk"):
            milestones.around_method(module, name, "load dataset", L.PHASE_LOAD)
        return
    for name in ("map", "filter"):
        original, change = getattr(module.Dataset, name), loader_settings.in_this_process
        setattr(module.Dataset, name, settings.changing("num-proc-none", original, change))
        milestones.around_method(module.Dataset, name, name + " dataset", L.PHASE_LOAD)


_DOWNLOADS = {
    "get_hf_file_metadata": "hub metadata request",
    "http_get": "hub download",
    "xet_get": "hub download",
    "snapshot_download": "hub snapshot download",
}
# Without xet a hub of before 0.30 downloads by http_get alone.
_OPTIONAL = ("xet_get",)
_DOWNLOADS_OF = {
    "huggingface_hub.file_download": ("get_hf_file_metadata", "http_get", "xet_get"),
    "huggingface_hub._snapshot_download": ("snapshot_download",),
}


def hub(module):
    names = _DOWNLOADS_OF[module.__name__]
    notes.arm_each(
        lambda name: milestones.around_method(module, name, _DOWNLOADS[name], L.PHASE_DOWNLOAD),
        [name for name in names if name not in _OPTIONAL or hasattr(module, name)],
    )


def safetensors(module):
    module.save_file = phases.unseen_by_dynamo(
        saves.recorded("safetensors", module.save_file, position=1, name="filename")
    )
    module.load_file = phases.unseen_by_dynamo(phases.around_load(module.load_file))


_CLASSES = {"PreTrainedModel": "load model", "PreTrainedTokenizerBase": "load tokenizer"}


def pretrained(module):
    for name, place in _CLASSES.items():
        if name in vars(module):
            if name == "PreTrainedModel" and settings.parameters("safetensors-off") is not None:
                _without_safetensors(vars(module)[name])
            milestones.around_method(vars(module)[name], "from_pretrained", place, L.PHASE_LOAD)


def _without_safetensors(model):
    """Weights come from the other file, where there is one."""

    @phases.replacing(model, "from_pretrained")
    def from_pretrained(original, *args, **kwargs):
        try:
            loaded = original(*args, **dict(kwargs, use_safetensors=False))
        except (OSError, ValueError) as error:
            settings.report("safetensors-off", False, "no other weights: " + str(error)[:200])
            return original(*args, **kwargs)
        settings.report("safetensors-off", True, "use_safetensors=False")
        return loaded


_SLOW = "tokenizers-slow"


def auto_tokenizer(module):
    """AutoTokenizer without threads of its own, if the plan asks and there is a slow tokenizer.

    The fast one handles what the slow one refuses: no new exception is raised.
    """
    if settings.parameters(_SLOW) is None:
        return
    if libraries.version_numbers(libraries.version_of("transformers"))[0] >= 5:
        settings.report(_SLOW, False, "transformers 5 has fast tokenizers only: tokenizers-off")
        return

    @phases.replacing(module.AutoTokenizer, "from_pretrained")
    def from_pretrained(original, *args, **kwargs):
        try:
            tokenizer = original(*args, **dict(kwargs, use_fast=False))
        except Exception as error:
            settings.report(_SLOW, False, "no slow tokenizer: " + type(error).__name__)
            return original(*args, **kwargs)
        slow = not getattr(tokenizer, "is_fast", False)
        said = "use_fast=False: " + type(tokenizer).__name__
        settings.report(_SLOW, slow, said if slow else said + " has no slow version")
        return tokenizer
