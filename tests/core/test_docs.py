"""The pages tell the truth: blocks run, links lead somewhere, captures are what wtrain prints."""

from __future__ import annotations

import fnmatch
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from tests.support import REPOSITORY, run_command
from watchdog_train.cli import group, main
from watchdog_train.config import load
from watchdog_train.core.events import AttemptLaunched, decode
from watchdog_train.core.fold.evolve import evolve, replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Policy
from watchdog_train.remedies.catalogue import available, script_lines
from watchdog_train.report.document import Document, Live
from watchdog_train.report.narrative import narrate
from watchdog_train.report.status_text import status_text
from watchdog_train.report.summary import closing_lines, opening_lines

README = REPOSITORY / "README.md"
PAGES = [README, REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"/(?:work|opt|root|tmp|mnt)/|/home/(?!mia/)")
PUNCTUATION = {";", "&&", "||", "|", "(", ")", ">", "if", "then", "else", "fi", "do", "done"}
CHEAP = {"status", "ps", "logs", "stalls", "report", "config", "remedies"}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str


def script(name: str):
    """A module of scripts/."""
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    try:
        spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


CAPTURE = script("capture_demo")


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page.name, line, match[1], match[2]))
    return [block for block in found if block.language in languages]


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell text that call wtrain, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&()<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in PUNCTUATION:
                words.append(word)
                continue
            while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
                del words[0]
            if words and Path(words[0]).name == "wtrain":
                yield words[1:]
            words = []


COMMANDS = [(named(block), words) for block in blocks("sh") for words in commands(block.text)]


@pytest.mark.parametrize("block", blocks("sh"), ids=named)
def test_shell_blocks_are_shell(block: Block) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    done = run_command([shell, "-n"], input=block.text, timeout_s=30, code=None)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[place for place, _ in COMMANDS])
def test_commands_of_the_pages_exist(place: str, words: list[str]) -> None:
    whole = group.build_group()
    command: click.Command | None = whole
    name = "wtrain"
    with click.Context(whole, info_name=name, **whole.context_settings) as parent:
        while isinstance(command, click.Group):
            name, words = words[0], words[1:]
            command = command.get_command(parent, name)
            assert command is not None, (place, name)
        command.make_context(name, list(words), parent=parent)


@pytest.fixture
def after_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the recorded run and the settings file of the README."""
    run = tmp_path / "wtrain-runs" / demo_state().run_id
    (run / "attempts" / "0001").mkdir(parents=True)
    shutil.copy(CAPTURE.EVENTS, run / "events.jsonl")
    (run / "attempts" / "0001" / "output.log").write_text("epoch 1\n")
    (tmp_path / "wtrain-runs" / "latest").symlink_to(run.name)
    (tmp_path / "wtrain.yaml").write_text(blocks("yaml")[0].text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


CHEAP_COMMANDS = [words for _, words in COMMANDS if words[0] in CHEAP]


@pytest.mark.parametrize("words", CHEAP_COMMANDS, ids=" ".join)
def test_cheap_commands_of_the_pages_work(
    after_the_demo: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """What reads or explains is really called, on the recorded run, and says something."""
    try:
        code = main.run(words)
    except SystemExit as ended:
        code = ended.code
    captured = capsys.readouterr()
    assert code == (3 if words[0] == "status" else 0), captured.err
    assert captured.out or captured.err or list(after_the_demo.glob("report.*"))


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_python_blocks_run(block: Block, tmp_path: Path) -> None:
    """Outside a supervised run the API does nothing, silently."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("WTRAIN_")}
    done = run_command([sys.executable, "-c", block.text], cwd=tmp_path, env=environment, code=None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=named)
def test_yaml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(block.text)
    assert load(path).policy != Policy()


def test_remedies_in_commands_of_the_pages_are_known() -> None:
    flags = {"--with", "--without", "--allow"}
    known = {*available(), "training", "device", "execution"}
    named = [
        (place, name)
        for place, words in COMMANDS
        for flag, name in itertools.pairwise(words)
        if flag in flags
    ]
    assert named
    assert not [(place, name) for place, name in named if name not in known]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with 3.11")
@pytest.mark.parametrize("block", blocks("toml"), ids=named)
def test_toml_blocks_are_valid(block: Block) -> None:
    import tomllib

    assert tomllib.loads(block.text)


def test_blocks_say_what_they_are() -> None:
    known = {"", "text", "sh", "python", "yaml", "toml"}
    for page in PAGES:
        languages = {match[1] for match in FENCE.finditer(page.read_text("utf-8"))}
        assert languages <= known, page.name
    assert blocks("sh")
    assert blocks("python")


def anchors(page: Path) -> set[str]:
    """The headings of a page as a web page's places."""
    text = FENCE.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"https?:", target):
            continue
        name, _, place = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        assert not place or place in anchors(found), target


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(CAPTURE.RECORDED.iterdir())], ids=lambda p: p.name
)
def test_no_path_of_a_machine(page: Path) -> None:
    assert MACHINE_PATH.findall(page.read_text("utf-8")) == []


def test_every_page_is_reachable_from_the_readme() -> None:
    linked = set(LINK.findall(README.read_text("utf-8")))
    for page in PAGES[1:]:
        assert str(page.relative_to(REPOSITORY)) in linked


def test_generated_pages_are_current() -> None:
    made = script("generate_docs").pages()
    names = {path.name for path in made}
    assert names >= {"cli.md", "remedies.md", "families.md", "config.md", "events.md"}
    for path, text in made.items():
        assert path.read_text("utf-8") == text, f"{path.name}: run scripts/generate_docs.py"


def test_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    row = re.compile(r"^\| (\d+|the child's) \|", re.MULTILINE)
    page = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
    assert row.findall(README.read_text("utf-8")) == row.findall(page)


def demo_events():
    return [decode(line) for line in CAPTURE.EVENTS.read_bytes().splitlines()]


def demo_state() -> State:
    return replay(demo_events())


@pytest.mark.parametrize("name", ["demo", "status"])
def test_captures_in_the_readme_are_the_recorded_ones(name: str) -> None:
    """What the README shows is what scripts/capture_demo.py has recorded, trimmed by its rules."""
    text = README.read_text("utf-8")
    assert CAPTURE.replaced(text, name, CAPTURE.blocks()[name]) == text
    assert CAPTURE.blocks()[name] in text


def test_recorded_screen_is_told_in_todays_words() -> None:
    """The recorded events, told by today's code, give the lines of the recorded screen."""
    state, told = State(), []
    for event in demo_events():
        state = evolve(state, event)
        if isinstance(event, AttemptLaunched) and len(state.attempts) == 1:
            told += opening_lines(
                state=state, policy=Policy(), watching_pid=event.pid, files="wtrain-runs/latest"
            )
        told += narrate(event, state)
    told += closing_lines(state, script_lines(), report=f"{state.run_dir}/report.html")
    screen = CAPTURE.SCREEN.read_text("utf-8").splitlines()
    hint = "run scripts/capture_demo.py"
    assert [line for line in screen if line.startswith("wtrain: ")] == told, hint


def test_recorded_status_is_told_in_todays_words() -> None:
    """Every line of the recorded status has its label in today's status of the same events."""
    state = demo_state()
    live = Live(at=(state.updated_at or 0.0) + 1.0, mono=state.mono + 1.0)
    today = status_text(Document(state=state, live=live))
    shown = CAPTURE.blocks()["status"].splitlines()
    assert shown[0] == today.splitlines()[0]
    labels = [line.partition(":")[0] for line in shown[1:] if re.match(r" *[A-Z]\w+: ", line)]
    assert len(labels) >= 4
    for label in set(labels) - {" Checkpoint"}:  # is measured, not in the log
        assert f"\n{label}: " in today, "run scripts/capture_demo.py"


def test_files_of_the_readme_are_files_of_a_run() -> None:
    listing = README.read_text("utf-8").partition("<!-- files -->")[2].partition("<!-- /files")[0]
    names = re.findall(r"^  (\S+) ", listing, re.MULTILINE)
    left = CAPTURE.FILES.read_text("utf-8").split()
    assert len(names) > 8
    for name in names:
        assert fnmatch.filter(left, name.replace("<pid>", "*")), name


@pytest.mark.slow
@pytest.mark.timeout(175)
def test_the_demo_still_shows_what_the_readme_shows(tmp_path: Path) -> None:
    """A fresh demo has every line of the README, but for numbers and ids."""
    screen = CAPTURE.perform(tmp_path)
    fresh = masked(CAPTURE.trimmed(CAPTURE.without_places(screen, tmp_path)))
    missing = masked(CAPTURE.blocks()["demo"]) - fresh
    assert missing == set(), f"run scripts/capture_demo.py; now the demo shows\n{screen}"


def masked(text: str) -> set[str]:
    """Lines with ids and numbers made equal, each as one."""
    text = re.sub(r"\n {8}", " ", text)
    text = re.sub(r"train-\d{8}-\d{6}-\w{4}", "RUN", text)
    text = re.sub(r"\d+(?:[.,]\d+)*", "N", text)
    return set(text.replace("N min N s", "N s").replace(" at step N: SIG", ": SIG").splitlines())
