"""Who may import whom: the layering that keeps the core pure and the client harmless."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import watchdog_train
from tests.support import run_command

PACKAGE = Path(watchdog_train.__file__).parent
_LOWER = {"core", "errors", "trusted_files", "whole_files"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "trusted_files": set(),
    "whole_files": {"trusted_files"},
    "plugins": set(),
    "client": {"client"},
    "keeper": {"keeper"},
    "integrations": {"client"},
    "core": {"core", "errors", "client.layout"},
    "explain": {"core", "explain"},
    "system": {*_LOWER, "system"},
    "store": {*_LOWER, "store", "system", "client.layout"},
    "checkpoints": {*_LOWER, "checkpoints", "client.layout", "plugins"},
    "remedies": {*_LOWER, "remedies"},
    "report": {*_LOWER, "report"},
    # Reads what a run has left, and has it rendered.
    "reporting": {*_LOWER, "reporting", "report", "store", "evidence", "remedies", ""},
    "config": {*_LOWER, "config"},
    # Processes of their own: what they show to others has no secrets.
    "notify": {*_LOWER, "notify", "evidence.redact"},
    "commands": {*_LOWER, "commands", "system", "evidence.redact"},
    # A collector is a process of its own: it puts looks, rules and wording together itself, and
    # asks the training for its stacks, on the page that the store writes.
    "evidence": _LOWER | {"evidence", "system", "explain", "remedies", "report", "plugins"},
}
ROOMS["evidence"] |= {"client.layout", "store.control"}
ROOMS["supervisor"] = {*ROOMS, "supervisor", "client.layout", ""}
ROOMS["supervisor"] -= {"client", "integrations"}
ROOMS["cli"] = {*ROOMS, "cli", "client.layout", ""} - {"client", "integrations", "keeper"}
ROOMS["__main__"] = {"cli"}
"""What each room may import of ours; "" is the package itself, for its version."""

_NOUNS = {"model", "policy", "events", "starting"}
_DECIDING = {"decide", "suspect", "actions", "answers", "commands"}
_DECIDING |= {"notices", "requests", "recovery", "job"}
IN_CORE: dict[str, set[str]] = {
    "model": set(),
    "policy": {"model"},
    "pickle_data": set(),
    "starting": {"model", "policy"},
    "events": {"model", "policy", "starting"},
    "detection": _NOUNS,
    "diagnosis": {"model", "detection"},
    "fold": {*_NOUNS, "detection"},
}
IN_CORE |= {room: {*IN_CORE, *_DECIDING} for room in _DECIDING}
IN_CORE["trace"] = IN_CORE["replay"] = {*IN_CORE} - {"diagnosis"}
"""The same inside the core: what measures and what is known must not know what is decided."""

FORBIDDEN_IN_CORE = {
    "os", "time", "subprocess", "psutil", "threading", "logging", "random", "socket",
    "signal", "pathlib", "asyncio", "multiprocessing",
}  # fmt: skip
TRAINING = {
    "torch", "transformers", "lightning", "pytorch_lightning", "datasets", "accelerate",
    "numpy", "safetensors", "tqdm", "huggingface_hub", "wandb",
}  # fmt: skip
INSIDE = {"client", "integrations", "demo", "__init__"}
"""Rooms that are loaded by the training's own interpreter."""


def modules() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if "demo" not in path.relative_to(PACKAGE).parts and "__pycache__" not in path.parts
    )


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, nested: bool = True) -> set[str]:
    """Full names of the modules that a file imports: anywhere in it, or outside functions only."""
    found: set[str] = set()
    package = ["watchdog_train", *path.relative_to(PACKAGE).parent.parts]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if not nested and id(node) in inner:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{module}.{alias.name}"
                is_module = (PACKAGE.parent / deeper.replace(".", "/")).with_suffix(".py").exists()
                is_package = (PACKAGE.parent / deeper.replace(".", "/")).is_dir()
                found.add(deeper if is_module or is_package else module)
    return found


def test_every_module_is_in_a_known_room() -> None:
    """A new room has to say what it may import."""
    assert {room_of(path) for path in modules()} == {*ROOMS, "__init__"}


def offences(rooms: Iterable[str], is_wrong: Callable[[Path, str], bool]) -> list[str]:
    """Wrong imports of the modules of these rooms."""
    return [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in modules()
        if room_of(path) in rooms
        for name in sorted(imports(path))
        if is_wrong(path, name)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room: str) -> None:
    """The arrows of the design, read off the source."""

    def is_wrong(_path: Path, name: str) -> bool:
        top, _, ours = name.partition(".")
        return top == "watchdog_train" and not {ours, ours.partition(".")[0]} & ROOMS[room]

    assert offences({room}, is_wrong) == []


def room_in_core(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[1]


@pytest.mark.parametrize("room", IN_CORE)
def test_rooms_of_the_core_import_only_what_they_may(room: str) -> None:
    """Nouns, then measuring and diagnosis, then the state, then deciding."""

    def is_wrong(path: Path, name: str) -> bool:
        ours = name.removeprefix("watchdog_train.core.")
        its_room = ours.partition(".")[0]
        mine = room_in_core(path) != room or ours == name or its_room == room
        return not mine and not {its_room, ours} & IN_CORE[room]

    assert offences({"core"}, is_wrong) == []


def test_every_module_of_the_core_is_in_a_known_room_of_it() -> None:
    """A new one has to say what it may import."""
    rooms = {room_in_core(path) for path in modules() if room_of(path) == "core"}
    assert rooms == {*IN_CORE, "__init__"}


def test_the_core_is_pure() -> None:
    """No module of the core, or that explains, can read a clock, a file, a process or chance."""
    assert (
        offences(("core", "explain"), lambda _, name: name.partition(".")[0] in FORBIDDEN_IN_CORE)
        == []
    )


def test_client_and_keeper_need_the_standard_library_only() -> None:
    """What is loaded in the training's process, or must outlive us, depends on nothing."""
    # imp is of the Pythons for which the stub has nothing else; 3.12 dropped it.
    fine = {*sys.stdlib_module_names, "imp", "watchdog_train"}

    def is_wrong(path: Path, name: str) -> bool:
        top = name.partition(".")[0]
        # Inside a function a training library is one that the user's script has imported.
        is_lazy = top in TRAINING and name not in imports(path, nested=False)
        return top not in fine and not is_lazy

    assert offences(("client", "keeper"), is_wrong) == []


def test_nothing_on_our_side_names_a_training_library() -> None:
    """Not even lazily: the supervisor works from an environment without torch."""
    ours = {room_of(path) for path in modules()} - INSIDE
    assert offences(ours, lambda _, name: name.partition(".")[0] in TRAINING) == []


def test_importing_our_side_loads_no_training_library() -> None:
    """With every module of our side imported for real, no training library is in memory."""
    names = [
        "watchdog_train." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in modules()
        if room_of(path) not in {*INSIDE, "keeper", "__main__"}
    ]
    names = [name.removesuffix(".__init__") for name in names]
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = run_command([sys.executable, "-c", code])
    assert not TRAINING & set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_costs_nothing() -> None:
    """`import watchdog_train` in a script loads no other module, ours or anybody's."""
    code = (
        "import sys; before = set(sys.modules); import watchdog_train\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = run_command([sys.executable, "-c", code])
    assert done.stdout.strip() == "['watchdog_train']"


def test_only_the_system_reads_proc() -> None:
    """One reader of processes; those inside the training and the keeper may import nothing."""
    opens = re.compile(r"""(open|readlink|listdir|scandir|exists|isdir|stat|Path)\(f?["']/proc""")
    readers = {room_of(path) for path in modules() if opens.search(path.read_text("utf-8"))}
    assert readers <= {"system", "client", "keeper"}


ON_PROCESSES = re.compile(
    r"\.send_signal(_to_group)?\(|\.snapshot\("
    r"|(?<![.\w])(start_keeper|drain_without_keeper|Sampler|ProcessTree)\("
)
"""What only hands do to a training: sample it, signal it, start its keeper."""
NOT_A_TRAINING_OF_THIS_RUN = {
    "children.py": "helpers of the supervisor itself",
    "leftovers.py": "what dead runs have left, on `wtrain clean`",
}


def test_the_supervisor_acts_on_processes_only_through_hands() -> None:
    """Or a training on another machine could not be supervised the same way."""
    found = {
        path.name
        for path in (PACKAGE / "supervisor").glob("*.py")
        if ON_PROCESSES.search(path.read_text("utf-8"))
    }
    assert found == {*NOT_A_TRAINING_OF_THIS_RUN}
    local = (PACKAGE / "supervisor" / "hands" / "local.py").read_text("utf-8")
    assert ON_PROCESSES.search(local)
