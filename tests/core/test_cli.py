"""The command line itself: help, guesses, exit codes, and words instead of tracebacks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

import watchdog_train
from tests.golden.compare import assert_golden
from watchdog_train.cli import group, main
from watchdog_train.cli.group import COMMANDS, CommandRow
from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.command_check import check_command


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    """A command `try` that does what a test asks for, under `does`."""
    asked: dict[str, object] = {}

    @click.command()
    @click.option("--loud-name")
    @click.option("--attempt", type=int)
    def try_(loud_name: str | None, attempt: int | None) -> object:
        asked.update(loud_name=loud_name, attempt=attempt)
        does = asked.get("does")
        return does() if callable(does) else does

    module = types.ModuleType("watchdog_train.cli.try")
    setattr(module, "try", try_)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, "try", CommandRow("Run", "Try."))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return asked


def fail(error: BaseException) -> object:
    def raise_it() -> object:
        raise error

    return raise_it


def test_help_is_as_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert_golden("help.txt", shown)
    assert main.run([]) == 0
    assert capsys.readouterr().out == shown


def test_help_of_settings_is_as_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["config", "show", "--help"]) == 0
    assert_golden("help_config_show.txt", capsys.readouterr().out)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists(name: str) -> None:
    module = group.COMMANDS[name].module or name.replace("-", "_")
    assert importlib.util.find_spec(f"watchdog_train.cli.{module}") is not None
    whole = group.build_group()
    with click.Context(whole, **whole.context_settings) as context:
        command = group.WtrainGroup().get_command(context, name)
    assert command.name == name


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--version", "ps"]):
        assert main.run(arguments) == 0
        assert capsys.readouterr().out == f"wtrain {watchdog_train.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["statsu"], "did you mean 'wtrain status'?"),
        (["python", "train.py"], "did you mean 'wtrain run -- python train.py'?"),
        (["zzz"], "'zzz' is not a command"),
        (["--zzz"], "No such option"),
        (["config"], ""),
        (["config", "show", "--zzz"], "No such option"),
        (["config", "show", "--on-stall", "explode"], "'explode' is not one of"),
        (["config", "show", "--max-restarts", "99"], "--max-restarts"),
        (["config", "explain", "nonsense_s"], "is not a setting"),
    ],
)
def test_wrong_usage_is_78_with_a_way_out(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """click's own 2 is never seen; the words go to stderr."""
    assert main.run(arguments) == 78
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(("does", "code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_a_command_returns_its_exit_code(
    called: dict[str, object], does: object, code: int
) -> None:
    called["does"] = does
    assert main.run(["try"]) == code


def test_errors_end_in_words_and_their_own_code(
    called: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake of the user is printed whole, without a traceback."""
    called["does"] = fail(WtrainError("it is so", hint="do that", reference="so", exit_code=76))
    assert main.run(["try"]) == 76
    assert capsys.readouterr().err == "error: so\n  it is so\n  hint: do that\n"
    called["does"] = fail(KeyboardInterrupt())
    assert main.run(["try"]) == 130
    called["does"] = fail(click.Abort())
    assert main.run(["try"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_of_ours_is_70_with_a_crash_file(
    called: dict[str, object], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One line on the screen; the traceback, but no argument, is in a private file."""
    called["does"] = fail(ZeroDivisionError("first\nsecond"))
    assert main.run(["try", "--loud-name", "hunter2"]) == 70
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "ZeroDivisionError: first (details in " in shown
    (crash,) = (tmp_path / "state" / "wtrain" / "crashes").iterdir()
    assert str(crash) in shown
    text = crash.read_text()
    assert "Traceback" in text
    assert "hunter2" not in text
    assert crash.stat().st_mode & 0o777 == 0o600


def test_a_bug_where_no_crash_file_can_be_written_still_names_the_line(
    called: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full or read-only home does not hide the bug."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    called["does"] = fail(RuntimeError("oh"))
    assert main.run(["try"]) == 70
    assert "test_cli.py:" in capsys.readouterr().err


def test_every_flag_is_a_variable_but_those_of_a_training(
    called: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WTRAIN_LOUD_NAME sets --loud-name; the flag wins; WTRAIN_ATTEMPT is not --attempt."""
    monkeypatch.setenv("WTRAIN_LOUD_NAME", "variable")
    monkeypatch.setenv("WTRAIN_ATTEMPT", "3")
    assert main.run(["try"]) == 0
    assert (called["loud_name"], called["attempt"]) == ("variable", None)
    assert main.run(["try", "--loud-name", "flag"]) == 0
    assert called["loud_name"] == "flag"


def test_settings_come_from_variables_below_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File < variable < flag, on the real command; what was used is named."""
    monkeypatch.chdir(tmp_path)
    Path("wtrain.yaml").write_text("recovery: {max_restarts: 2, allow: [training]}\n")
    monkeypatch.setenv("WTRAIN_MAX_RESTARTS", "3")
    monkeypatch.setenv("WTRAIN_STALL_TIMEOUT", "10m")
    monkeypatch.setenv("WTRAIN_OBSERVE", "1")
    assert main.run(["config", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema_version"] == 1
    assert shown["sources"] == ["wtrain.yaml"]
    assert shown["settings"]["recovery.max_restarts"] == 3
    assert shown["settings"]["recovery.allow"] == ["training"]
    assert shown["settings"]["recovery.observe"] is True
    assert shown["settings"]["detection.stall_timeout_s"] == 600
    assert main.run(["config", "show", "--max-restarts", "4", "--with", "a", "--with", "b"]) == 0
    text = capsys.readouterr().out
    assert "max_restarts: 4\n" in text
    assert 'with_remedies: ["a", "b"]\n' in text
    assert "# Changed from 5: by --max-restarts." in text


def test_config_check_and_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text("name: x\n")
    Path("bad.yaml").write_text("nmae: x\n")
    assert main.run(["config", "check", "good.yaml"]) == 0
    assert capsys.readouterr().out == "good.yaml: no problems\n"
    assert main.run(["config", "check", "bad.yaml", "--json"]) == 78
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["place"], problem["key"]) == ("bad.yaml:1", "nmae")
    assert problem["hint"] == "did you mean 'name'?"
    assert main.run(["config", "explain", "max_restarts"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("recovery.max_restarts\n")
    assert "default: 5\n" in words
    assert "flag:    --max-restarts" in words
    assert "preset overnight: 10" in words


def test_a_closed_pipe_is_quiet() -> None:
    """`wtrain config explain | head -0` says nothing on stderr and ends as SIGPIPE would."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "watchdog_train", "config", "explain"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_version_needs_no_heavy_import() -> None:
    code = (
        "import sys; from watchdog_train.cli.main import run; code = run(['--version'])\n"
        "heavy = {'click', 'psutil', 'yaml', 'msgspec', 'platformdirs', 'torch', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("words", [("\udcff",), ("x" * 100,) * 10_000])
def test_a_command_that_cannot_be_recorded_whole_is_refused(words: tuple[str, ...]) -> None:
    """It was started with a part of its arguments, and trained on a part of the files."""
    command = (sys.executable, "-c", "", *words)
    with pytest.raises(WtrainError) as refused:
        check_command(command)
    assert (refused.value.reference, refused.value.exit_code) == ("command-not-recordable", 78)
    check_command(command[:3] + ("x" * 100,) * 8000)


NAMING_A_RUN = (
    *("status", "show", "stop", "save", "restart", "adopt", "attach", "logs", "dump", "report"),
    *("stalls", "show --run", "replay", "diagnose", "ps --x"),
)
UNLIKELY = {
    "long": "x" * 5000,
    "long path": "/" + "x/" * 4000,
    "long part of a path": "y/" + "z" * 300,
    "NUL": "a\0b",
    "newline": "a\nwtrain: success\n",
    "slashes": "////no///run",
    "unknown home": "~nobody-of-that-name/x",
    "half of a character": "\udcff",
    "file": __file__,
    "file as a folder": f"{__file__}/x",
}


@pytest.mark.parametrize("word", UNLIKELY.values(), ids=UNLIKELY)
@pytest.mark.parametrize("command", NAMING_A_RUN)
def test_any_word_for_a_run_gets_an_answer(
    command: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused with words, never a bug of ours; what it was is shown on one line and cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code = main.run([*command.split(), word])
    told = capsys.readouterr()
    assert code in ((0, 78) if command == "diagnose" else (78,)), told.err
    assert "a bug of wtrain" not in told.err
    assert "\nwtrain: success" not in told.err
    assert len(told.err) < 12_000
