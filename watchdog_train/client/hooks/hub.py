"""What huggingface_hub does on the network is phase download.

The metadata request belongs to it: a server that takes the connection and never answers holds a
training there, before any transfer has begun.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones

_FUNCTIONS = {
    "get_hf_file_metadata": "hub metadata request",
    "http_get": "hub download",
    "xet_get": "hub download",
    "snapshot_download": "hub snapshot download",
}
# Without xet a hub of before 0.30 downloads by http_get alone.
_OPTIONAL = ("xet_get",)
_OF_MODULE = {
    "huggingface_hub.file_download": ("get_hf_file_metadata", "http_get", "xet_get"),
    "huggingface_hub._snapshot_download": ("snapshot_download",),
}


def arm(module):
    """Hook into huggingface_hub.file_download or ._snapshot_download."""
    missing = []
    for name in _OF_MODULE[module.__name__]:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, milestones.around(_FUNCTIONS[name], original, L.PHASE_DOWNLOAD))
        elif name not in _OPTIONAL:
            missing.append(name)
    if missing:
        raise RuntimeError("it has no " + ", ".join(missing))
