"""Which launcher a command line starts, and with which options. Pure: words in, values out.

Launchers are those that end in torch.distributed.run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.model import Value

Family = Literal["torchrun", "accelerate"]


class Options:
    def __init__(
        self, *, flags: str, values: str, shorts: Mapping[str, str], abbreviated: bool
    ) -> None:
        self.flags = frozenset(flags.split())
        self.shorts = shorts
        self.names = self.flags | frozenset(values.split())
        self.abbreviated = abbreviated

    def full(self, name: str) -> str:
        """The full name of an option; unchanged if it is unknown."""
        name = name.replace("_", "-")
        if name in self.names or not self.abbreviated:
            return name
        longer = [known for known in self.names if known.startswith(name)]
        return longer[0] if len(longer) == 1 else name


OPTIONS: dict[Family, Options] = {
    "torchrun": Options(
        flags="standalone module no-python run-path virtual-local-rank use-env help",
        values="nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts "
        "monitor-interval start-method event-log-handler role log-dir redirects tee "
        "local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters node-rank "
        "master-addr master-port local-addr logs-specs numa-binding signals-to-handle "
        "shutdown-timeout",
        shorts={"m": "module", "r": "redirects", "t": "tee", "h": "help"},
        abbreviated=True,
    ),
    "accelerate": Options(
        flags="help quiet cpu multi-gpu tpu enable-cpu-affinity dynamo-use-fullgraph "
        "dynamo-use-dynamic dynamo-use-regional-compilation use-deepspeed use-fsdp "
        "use-parallelism-config use-megatron-lm same-network module no-python tpu-cluster "
        "no-tpu-cluster tpu-use-sudo downcast-bf16 fp8-use-autocast-during-eval debug",
        values="",
        shorts={"h": "help", "q": "quiet", "t": "tee", "m": "module"},
        abbreviated=False,
    ),
}
"""As torchrun 2.13 and accelerate 1.15 tell them apart (torch/distributed/run.py,
accelerate/commands/launch.py)."""
_SCRIPTS: dict[str, Family] = {"torchrun": "torchrun", "accelerate-launch": "accelerate"}
_MODULES: dict[str, Family] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_OPERATORS = frozenset("();<>|&")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*w?\Z")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_WRAPPERS: dict[str, int] = dict.fromkeys(
    (
        "nohup", "setsid", "nice", "ionice", "time", "stdbuf", "unbuffer", "exec",
        "command", "numactl", "chrt", "caffeinate", "env", "sudo", "doas", "xvfb-run",
        "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "aprun", "jsrun",
        "deepspeed", "horovodrun", "strace", "ltrace", "valgrind", "kernprof",
        "viztracer", "scalene", "pyinstrument", "ncu", "uvx",
    ),
    0,
) | dict.fromkeys(
    (
        "timeout", "taskset", "flock", "uv", "poetry", "pdm", "pipenv", "hatch", "rye",
        "pixi", "conda", "mamba", "micromamba", "coverage", "memray", "nsys", "py-spy",
        "perf", "singularity", "apptainer",
    ),
    1,
)  # fmt: skip
"""Programs that start the command behind them, with the number of their own words before it."""
_RUNNERS = (
    "cProfile", "profile", "trace", "pdb", "debugpy", "coverage", "kernprof", "viztracer",
    "memray", "scalene", "pyinstrument", "torch.utils.bottleneck",
    "deepspeed.launcher.runner",
)  # fmt: skip
"""Modules that start the script behind them: python -m cProfile train.py."""
_OPAQUE = (
    "papermill", "jupyter", "make", "gmake", "just", "task", "npm", "dvc", "snakemake",
    "tox", "nox", "invoke", "docker", "podman", "ssh", "xargs", "parallel", "script", "su",
    "watch",
)  # fmt: skip
"""Programs whose arguments do not reach a script as they are."""
_SHELL_DEPTH = 2
_MOST_WORDS = 10_000


class Found(Value):
    """A launcher in a command, with its options as they were written."""

    family: Family
    options: dict[str, str]
    """By full name with hyphens; a flag has an empty value."""
    variables: dict[str, str]
    """Set in the command itself: `env PET_NNODES=2 torchrun`."""
    is_open: bool = False
    """More options may come from a shell variable: `torchrun $ARGS train.py`."""


def find(argv: Sequence[str]) -> Found | None:
    """The launcher that a command starts, also behind `uv run`, `env` or `bash -c`.

    Of several in one shell command all options count: what one of them sets counts as set.
    """
    found = _launchers(tuple(argv[:_MOST_WORDS]), _SHELL_DEPTH)
    if not found:
        return None
    options: dict[str, str] = {}
    variables: dict[str, str] = {}
    for launcher in reversed(found):
        options |= launcher.options
        variables |= launcher.variables
    is_open = any(launcher.is_open for launcher in found)
    return Found(family=found[0].family, options=options, variables=variables, is_open=is_open)


def shell_file(argv: Sequence[str]) -> str | None:
    """The script that a command passes to a shell (`bash run.sh`), as written; else None."""
    place, is_code = _of_shell(argv[:_MOST_WORDS])
    return None if place is None or is_code else argv[place]


def with_options(argv: Sequence[str], options: Sequence[str]) -> tuple[str, ...] | None:
    """The command with these options of its launcher; None if no launcher is visible in it."""
    _, end = _own_options(argv)
    # The launchers use the last of two equal options.
    return None if end is None else (*argv[:end], *options, *argv[end:])


def without_option(argv: Sequence[str], name: str) -> tuple[str, ...]:
    """The command without this option of its launcher, in any spelling."""
    own, _ = _own_options(argv)
    left_out = {at for option in own if option.name == name for at in option.places}
    return tuple(word for at, word in enumerate(argv) if at not in left_out)


def _own_options(argv: Sequence[str]) -> tuple[list[_Option], int | None]:
    """The launcher's options and their end; None if no launcher is visible there."""
    words = tuple(argv[:_MOST_WORDS])
    place = None if _shell_script(words) is not None else _position(words)
    return ([], None) if place is None else _read(words, place[1], place[0])


def starts_ranks(command: Sequence[str]) -> bool:
    """Whether a process with this command line is itself a launcher, and no shell around one."""
    if not command:
        return False
    name = _program(command[0])
    run: _Run | None = _Run(name=name, begin=1)
    if _PYTHON.match(name):
        run = _run_by_python(command, 1)
    if run is None:
        return False
    return run.name in (layout.LAUNCHER_MODULES if run.is_module else layout.LAUNCHER_SCRIPTS)


class PythonTarget(Value):
    """What a command that begins with an interpreter runs."""

    name: str
    """A path or the name of a module, as it is written."""
    is_module: bool
    options: tuple[str, ...]
    """Of the interpreter."""


def python_target(argv: Sequence[str]) -> PythonTarget | None:
    """The script or module of `python ...`; None for anything else, code from stdin included."""
    run = _run_by_python(argv, 1) if argv and _PYTHON.match(_program(argv[0])) else None
    options = tuple(argv[1 : run.begin - 1]) if run is not None else ()
    if (
        run is None
        or run.begin > len(argv)
        or "-" in options
        or any(o[:2] == "--" for o in options)
    ):
        return None
    is_module = options[-1:] != () and options[-1][0] == "-" and options[-1].endswith("m")
    return PythonTarget(
        name=argv[run.begin - 1],
        is_module=is_module,
        options=options[:-1] if is_module else options,
    )


Receiver = Literal["script", "program", "nobody"]
"""The receiver of a word added to a command: the script; a program that may not pass it on (a
shell script or make); none (`bash -c "..."`)."""


class ScriptWords(Value, kw_only=False):
    """Where the training script's arguments are in a command."""

    begin: int
    """Index of the first. If unsure it is too high, so options of other programs stay untouched."""
    end: int
    """Where an option is added: the index of the script's own `--`, or the length."""
    receiver: Receiver


def script_words(argv: Sequence[str]) -> ScriptWords:
    """Where the script's arguments are, behind interpreters, launchers and wrappers."""
    begin, receiver = _script_begin(argv, 0)
    begin = min(begin, len(argv))
    end = next((at for at in range(begin, len(argv)) if argv[at] == "--"), len(argv))
    return ScriptWords(begin, end, receiver)


def script_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """The script's arguments before its `--`, also inside `bash -c "..."`."""
    text = _shell_script(argv)
    if text is not None:
        return tuple(word for command in _commands(text) for word in script_arguments(command))
    place = script_words(argv)
    return tuple(argv[place.begin : place.end])


def _script_begin(words: Sequence[str], at: int) -> tuple[int, Receiver]:
    name = _program(words[at]) if at < len(words) else ""
    if name in SHELLS:
        place, is_code = _of_shell(words[at:])
        if place is None or is_code:
            return len(words), "nobody" if is_code else "program"
        return at + place + 1, "program"
    if name in _OPAQUE or name.endswith(".sh"):
        return at + 1, "program"
    run: _Run | None = _Run(name=name, begin=at + 1)
    if _PYTHON.match(name):
        run = _run_by_python(words, at + 1)
        if run is None:
            return _behind_code(words, at + 1), "script"
        if run.is_module and run.name in _OPAQUE:
            return run.begin, "program"
        if run.is_module and run.name in _RUNNERS:
            return _script_begin(words, _command_behind(words, run.begin, 0))
        if not run.is_module or _family(run, words) is None:
            return run.begin, "script"
    if run is not None and (found := _family(run, words)) is not None:
        _, end = _read(words, found[1], found[0])
        return _script_begin(words, end + (tuple(words[end : end + 1]) == ("--",)))
    starts_python = any(_PYTHON.match(_program(word)) for word in words[at + 1 :])
    if name in _WRAPPERS or (starts_python and not _is_script(name)):
        return _script_begin(words, _command_behind(words, at + 1, _WRAPPERS.get(name, 0)))
    return at + 1, "script"


def _behind_code(words: Sequence[str], at: int) -> int:
    """Behind `-c CODE`, or the `-` of a script from stdin."""
    for position in range(at, len(words)):
        word = words[position]
        if word == "-":
            return position + 1
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return position + 2
    return len(words)


def _command_behind(words: Sequence[str], at: int, own: int) -> int:
    """Where the command begins that a wrapper starts: an interpreter, a launcher or a script.

    Otherwise each option of the wrapper counts as one with a value, so that the result is right or
    too high.
    """
    first = _first_program(words[at:])
    position = at
    while position < len(words) and (own or words[position].startswith("-")):
        word = words[position]
        position += 1
        if word in ("-m", "--module"):
            return position
        if word == "--":
            break
        if not word.startswith("-"):
            own -= 1
        elif "=" not in word:
            position += position < len(words) and words[position][:1] != "-"
    while position < len(words) and _ASSIGNMENT.fullmatch(words[position]):
        position += 1
    opaque = position < len(words) and _program(words[position]) in (*_OPAQUE, *_WRAPPERS)
    return position if first is None or opaque else at + first


def _launchers(words: tuple[str, ...], depth: int) -> list[Found]:
    script = _shell_script(words) if depth else None
    if script is not None:
        found: list[Found] = []
        exported: dict[str, str] = {}
        for command in _commands(script):
            for one in _launchers(command, depth - 1):
                variables = {**exported, **one.variables}
                found.append(msgspec.structs.replace(one, variables=variables))
            if command[0] == "export" or len(command) == 1:
                exported |= _assignments(command)
        return found
    place = _position(words)
    if place is None:
        return []
    family, begin = place
    read, end = _read(words, begin, family)
    options = {option.name: option.value for option in read}
    # A shell variable in place of the script may hold options as well.
    is_open = end < len(words) and words[end][:1] in ("$", "`")
    variables = _assignments(words[:begin])
    return [Found(family=family, options=options, variables=variables, is_open=is_open)]


def _assignments(words: Sequence[str]) -> dict[str, str]:
    found = filter(None, map(_ASSIGNMENT.fullmatch, words))
    return {match[1]: match[2] for match in found}


def _shell_script(words: Sequence[str]) -> str | None:
    """The script of `bash -c SCRIPT`; not of a shell in a script's or launcher's arguments."""
    place, is_code = _of_shell(words)
    return words[place] if place is not None and is_code else None


def _of_shell(words: Sequence[str]) -> tuple[int | None, bool]:
    """Where a shell's script stands, and whether it is code; no place: it reads its input."""
    position = _first_program(words)
    if position is None or _program(words[position]) not in SHELLS:
        return None, False
    position, is_code = position + 1, False
    while position < len(words) and words[position][:1] in ("-", "+") and not is_code:
        word = words[position]
        if not word.startswith("--") and word.endswith("s"):
            return None, False
        is_code = not word.startswith("--") and word.endswith("c")
        position += 2 if word in ("-o", "+o", "-O", "+O") else 1
    return (position, is_code) if position < len(words) else (None, False)


def _first_program(words: Sequence[str]) -> int | None:
    """Where wrappers and their options end: at a shell, a launcher, a Python or its script."""
    programs = (*SHELLS, *layout.LAUNCHER_SCRIPTS)
    ends = (
        position
        for position, word in enumerate(words)
        if _program(word) in programs or _PYTHON.match(_program(word)) or _is_script(word)
    )
    return next(ends, None)


class _Run(Value, kw_only=False):
    name: str
    begin: int
    is_module: bool = False


def _run_by_python(words: Sequence[str], begin: int) -> _Run | None:
    """None for `-c`, `-`, an interactive Python, and a command without a target."""
    position = begin
    while position < len(words):
        word = words[position]
        position += 1
        if word == "-":
            return None
        if not word.startswith("-"):
            is_file = word.replace("\\", "/").endswith(layout.LAUNCHER_FILES)
            name = "torch.distributed.run" if is_file else _program(word)
            return _Run(name=name, begin=position, is_module=is_file)
        if word.startswith("--"):
            continue
        if word in ("-X", "-W"):
            position += 1
        elif word[:2] in ("-X", "-W"):
            continue
        elif word.endswith("c"):
            return None
        elif word.endswith("m"):  # options may be joined: python -um torch.distributed.run
            name = words[position] if position < len(words) else ""
            return _Run(name=name, begin=position + 1, is_module=True)
    return None


def _position(words: Sequence[str]) -> tuple[Family, int] | None:
    for position, word in enumerate(words):
        run: _Run | None = _Run(name=_program(word), begin=position + 1)
        if _PYTHON.match(_program(word)):
            run = _run_by_python(words, position + 1)
            return None if run is None else _family(run, words)
        if word in ("-m", "--module") and position + 1 < len(words):  # of uv run
            run = _Run(name=words[position + 1], begin=position + 2, is_module=True)
        if run is not None and (found := _family(run, words)) is not None:
            return found
        if _is_script(word):
            return None
    return None


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".pyw"))


def _family(run: _Run, words: Sequence[str]) -> tuple[Family, int] | None:
    family = (_MODULES if run.is_module else _SCRIPTS).get(run.name)
    if family is not None:
        return family, run.begin
    program = "accelerate.commands.accelerate_cli" if run.is_module else "accelerate"
    if run.name == program and tuple(words[run.begin : run.begin + 1]) == ("launch",):
        return "accelerate", run.begin + 1
    return None


def _commands(script: str) -> Iterator[tuple[str, ...]]:
    lines = script.replace("\\\n", " ").split("\n")
    text = " ; ".join(_COMMENT.sub("", line) for line in lines)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    command: list[str] = []
    try:
        words = [word for _, word in zip(range(_MOST_WORDS), lexer, strict=False)]
    except ValueError:
        return
    for word in (*words, ";"):
        if _OPERATORS.issuperset(word):
            if command:
                yield tuple(command)
            command = []
        else:
            command.append(word)


class _Option(NamedTuple):
    name: str
    """The full name, with hyphens."""
    value: str
    places: range


def _read(words: Sequence[str], begin: int, family: Family) -> tuple[list[_Option], int]:
    """The options from words[begin] on, and where they end."""
    known = OPTIONS[family]
    found: list[_Option] = []
    end = begin
    while end < len(words) and words[end].startswith("-") and words[end] not in ("-", "--"):
        begin, word = end, words[end]
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            name = known.full(name[2:])
        else:
            name = known.shorts.get(word[1], word[1])
            equals = value = word[2:].removeprefix("=")
        end += 1
        if name in known.flags:
            value = ""
        elif not equals:
            value = words[end] if end < len(words) else ""
            end = min(end + 1, len(words))
        found.append(_Option(name, value, range(begin, end)))
    return found, end


def _program(word: str) -> str:
    return word.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
