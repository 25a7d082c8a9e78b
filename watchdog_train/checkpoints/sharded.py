"""What checkpoints of several files hold: weights, files of torch.save, and sharded state inside.

FSDP's by torch's DCP, and DeepSpeed's.
"""

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial

from watchdog_train.checkpoints import dcp, deepspeed, disk, formats, safetensors, torch_zip

_DIRECTORY = re.compile(r"^(pytorch_model(_fsdp)?_\d+|pytorch_model|optimizer_\d+|global_step\d+)/")


def is_inside(names: Iterable[str]) -> bool:
    """Whether some of these relative names lie in a directory of sharded state."""
    return any(map(_DIRECTORY.match, names))


def parts(
    path: str, files: disk.Sizes, by_torch_save: re.Pattern[str], limits: formats.Limits
) -> Iterator[formats.Part]:
    """A check for each of its files, and for each directory of sharded state."""
    inside: dict[str, disk.Sizes] = {}
    for name in sorted(files):
        where = os.path.join(path, name)
        if name.endswith(".index.json"):
            yield name, partial(safetensors.check_index, where)
        elif name.endswith(safetensors.SUFFIX):
            yield name, partial(safetensors.check_file, where)
        elif by_torch_save.match(name):
            yield name, partial(torch_zip.check_file, where, limits)
        directory, slash, rest = name.partition("/")
        if slash and "/" not in rest and _DIRECTORY.match(name):
            inside.setdefault(directory, {})[rest] = files[name]
    for directory, content in inside.items():
        of = deepspeed if any(map(deepspeed.belongs, content)) else dcp
        yield directory, partial(of.check_directory, os.path.join(path, directory), content, limits)
