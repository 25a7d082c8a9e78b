"""Files for service managers: what stands in them is what is started."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog_train.service.units import Service, launchd_plist, systemd_unit

WORDS = st.lists(st.text(st.characters(exclude_characters="\0\r", codec="utf-8")), max_size=6)
HOSTILE = ("--x", "$HOME", "${HOME}", "100%", "%h", 'a "b"', "c\\d", "e\nf", "", "é ; rm", "@-!+:")


def service(*words: str, **environment: str) -> Service:
    argv = ("/opt/venv/bin/wtrain", "run", "--", *words)
    return Service(name="my night!", argv=argv, cwd="/data/my runs/50%", environment=environment)


def value_of(unit: str, key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)
    return str(value)


def read_as_systemd(text: str, *, command: bool) -> list[str]:
    """Quoted words by the rules of systemd.syntax(7), systemd.unit(5) and systemd.service(5)."""
    words = []
    for quoted in re.findall(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL):
        word = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), quoted)
        assert "%" not in word.replace("%%", ""), "a specifier"
        word = word.replace("%%", "%")
        if command:
            assert "$" not in word.replace("$$", ""), "a variable"
            word = word.replace("$$", "$")
        words.append(word)
    return words


@given(WORDS)
def test_every_word_reaches_the_program(words: list[str]) -> None:
    """Quotes, specifiers, variables and line ends are no syntax."""
    made = service(*words, VALUE="".join(words))
    unit = systemd_unit(made)
    assert read_as_systemd(value_of(unit, "ExecStart"), command=True) == list(made.argv)
    (variable,) = read_as_systemd(value_of(unit, "Environment"), command=False)
    assert variable == f"VALUE={''.join(words)}"


def test_the_training_outlives_wtrain_in_both() -> None:
    """The settings without which a death of ours would be the training's, too."""
    made = service(*HOSTILE)
    unit = systemd_unit(made)
    for line in ("KillMode=process", "OOMPolicy=continue", "Type=notify", "Restart=on-abnormal"):
        assert line in unit.splitlines()
    assert value_of(unit, "WorkingDirectory") == "/data/my runs/50%%"
    plist = plistlib.loads(launchd_plist(made).encode())
    assert plist["ProgramArguments"] == list(made.argv)
    assert plist["AbandonProcessGroup"] is True
    assert plist["KeepAlive"] == {"Crashed": True}
    assert plist["Label"] == made.label == "wtrain-my-night"


def test_systemd_itself_has_no_objection(tmp_path: Path) -> None:
    """By systemd-analyze, where it is installed."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    command = Service(name="x", argv=("/bin/true", *HOSTILE), cwd="/", environment={"A": "b c"})
    path = tmp_path / "wtrain-x.service"
    path.write_text(systemd_unit(command), encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "wtrain-x.service" not in done.stderr
