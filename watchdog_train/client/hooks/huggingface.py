"""Data, models and files of Hugging Face's libraries: loads, downloads and saves as phases.

The metadata request of the hub belongs to phase download: a server that takes the connection and
never answers holds a training there, before any transfer has begun.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import libraries, loader_settings, milestones, phases, saves, settings


def datasets(module):
    """Hook into datasets.arrow_dataset or datasets.load; num-proc-none is applied here."""
    if module.__name__ == "datasets.load":
        for name in ("load_dataset", "load_from_disk"):
            original = getattr(module, name)
            setattr(module, name, milestones.around("load dataset", original, L.PHASE_LOAD))
        return
    for name in ("map", "filter"):
        original = getattr(module.Dataset, name)
        place = milestones.around(name + " dataset", _without_processes(original), L.PHASE_LOAD)
        setattr(module.Dataset, name, place)


def _without_processes(original):
    def wrapper(*args, **kwargs):
        args, kwargs = loader_settings.without_processes(original, args, kwargs)
        return original(*args, **kwargs)

    return phases.like(wrapper, original)


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
    """Hook into huggingface_hub.file_download or ._snapshot_download."""
    missing = []
    for name in _DOWNLOADS_OF[module.__name__]:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, milestones.around(_DOWNLOADS[name], original, L.PHASE_DOWNLOAD))
        elif name not in _OPTIONAL:
            missing.append(name)
    if missing:
        raise RuntimeError("it has no " + ", ".join(missing))


def safetensors(module):
    """Hook into a safetensors.torch that has just been imported."""
    module.save_file = phases.unseen_by_dynamo(
        saves.recorded("safetensors", module.save_file, position=1, name="filename")
    )
    module.load_file = phases.unseen_by_dynamo(phases.around_load(module.load_file))


_CLASSES = {"PreTrainedModel": "load model", "PreTrainedTokenizerBase": "load tokenizer"}


def pretrained(module):
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


_SLOW = "tokenizers-slow"


def auto_tokenizer(module):
    """AutoTokenizer without threads of its own, if the plan asks and there is a slow tokenizer.

    What the slow one refuses the fast one does: nothing is raised that would not have been raised.
    """
    if settings.parameters(_SLOW) is None:
        return
    if libraries.version_numbers(libraries.version_of("transformers"))[0] >= 5:
        settings.report(_SLOW, False, "transformers 5 has fast tokenizers only: tokenizers-off")
        return
    original = module.AutoTokenizer.__dict__["from_pretrained"].__func__

    def from_pretrained(*args, **kwargs):
        try:
            tokenizer = original(*args, **dict(kwargs, use_fast=False))
        except Exception as error:
            settings.report(_SLOW, False, "no slow tokenizer: " + type(error).__name__)
            return original(*args, **kwargs)
        slow = not getattr(tokenizer, "is_fast", False)
        said = "use_fast=False: " + type(tokenizer).__name__
        settings.report(_SLOW, slow, said if slow else said + " has no slow version")
        return tokenizer

    module.AutoTokenizer.from_pretrained = classmethod(phases.like(from_pretrained, original))
