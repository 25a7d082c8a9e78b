"""Settings: strict, every problem at once, and the same truth in files, flags and pages."""

from __future__ import annotations

import json
import os
import shlex
import sys
import zipfile
from pathlib import Path

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.compare import assert_golden
from tests.support import REPOSITORY, run_command
from watchdog_train.config import ConfigError, dump_policy, explain, load
from watchdog_train.config.presets import PRESETS
from watchdog_train.config.reading import MAX_CONFIG_BYTES
from watchdog_train.config.schema import (
    BadValueError,
    build,
    flatten,
    parse_duration,
    sections,
    settings,
)
from watchdog_train.config.text import scalar
from watchdog_train.core.policy import Detection, Limits, Policy
from watchdog_train.errors import EXIT_REFUSED, WtrainError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("some.yaml")


def problems(file: Path, text: str | bytes) -> ConfigError:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.exit_code == EXIT_REFUSED
    return caught.value


def test_nothing_said_is_the_default_policy(tmp_path: Path) -> None:
    loaded = load(directory=tmp_path)
    assert loaded.policy == Policy()
    assert loaded.sources == ()


def test_every_problem_is_named_at_once_with_line_and_way_out(file: Path) -> None:
    error = problems(
        file,
        """\
detektion: {}
max_restarts: 3
recovery:
  on_stall: restrat
  allow: training
  allow: []
  max_restarts: 3.5
  observe: "yes"
  checkpoints: [a, [b]]
detection:
  poll_s: -1
  silence_s: 1:30
  stall_timeout_s: 0
  quiet_windows: true
stopping: 12
name: 2026-11-21
evidence:
  process_s: {}
  total_s: soon
""",
    )
    assert_golden("config_errors.txt", error.render() + "\n")
    assert len(error.problems) == 16


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("typo", "recovery:\n  max_restart: 3\n"),
        ("elsewhere", "soft_floor: 1\nmax_restarts: 3\n"),
        ("syntax", "recovery:\n\tmax_restarts: 3\n"),
        ("unclosed", "recovery: {max_restarts: 3\nname: x\n"),
        ("list", "- a\n- b\n"),
        ("scalar", "just words\n"),
        ("two", "name: a\n---\nname: b\n"),
        ("tag", "name: !!python/object/apply:os.system ['true']\n"),
        ("latin1", b"name: caf\xe9\n"),
        ("control", b"name: a\x07b\n"),
        ("deep", "name: " + "[" * 5000 + "\n"),
        ("huge-number", "recovery: {max_restarts: " + "9" * 5000 + "}\n"),
        ("infinite", "stopping: {grace_s: .inf}\n"),
        ("not-a-number", "stopping: {grace_s: .nan}\n"),
        ("colon", "name: a: b\n"),
        ("alias", "name: *nobody\n"),
        ("merge", "recovery:\n  <<: {max_restarts: 3}\n"),
    ],
)
def test_each_kind_of_mistake_reads_well(file: Path, name: str, text: str | bytes) -> None:
    assert_golden(f"config_error_{name}.txt", problems(file, text).render() + "\n")


def test_a_file_that_cannot_be_read_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(file)
    Path("folder").mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        load(Path("folder"))
    os.mkfifo("pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        load(Path("pipe"))
    assert "more than 256 KiB" in problems(file, b"#" * (MAX_CONFIG_BYTES + 1)).render()


@pytest.mark.parametrize("text", ["", "# nothing\n", "recovery:\n  # max_restarts: 3\n", "---\n"])
def test_an_empty_file_changes_nothing(file: Path, text: str) -> None:
    file.write_text(text)
    assert load(file).policy == Policy()


def test_a_byte_order_mark_and_windows_lines_are_read(file: Path) -> None:
    """A file saved by a Windows editor is a config file like any other."""
    file.write_bytes(b"\xef\xbb\xbfname: x\r\nrecovery:\r\n  max_restarts: 3\r\n")
    policy = load(file).policy
    assert (policy.name, policy.recovery.max_restarts) == ("x", 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1.5 m", 90),
        ("1d", 86400),
        (".5", 0.5),
    ],
)
def test_times_take_units(file: Path, text: str, seconds: float) -> None:
    """90, 90s, 10m and 2h mean the same in a file and on the command line."""
    assert parse_duration(text) == seconds
    file.write_text(f"stopping:\n  grace_s: {text}\n")
    assert load(file).policy.stopping.grace_s == seconds
    assert load(file, None, {"stopping.grace_s": "7"}).policy.stopping.grace_s == 7


@pytest.mark.parametrize("text", ["", "s", "-5", "5x", "1:30", "1e3", "5 m s", "inf", "9" * 40])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        parse_duration(text)


def test_later_sources_win(tmp_path: Path) -> None:
    """Default < preset < file < flag, and what was used is told."""
    file = tmp_path / "wtrain.yaml"
    key = "recovery.max_restarts"
    assert load(directory=tmp_path).policy.recovery.max_restarts == 5
    assert load(None, "overnight", directory=tmp_path).policy.recovery.max_restarts == 10
    file.write_text("# mine\nrecovery:\n  max_restarts: 7\n")
    loaded = load(None, "overnight", directory=tmp_path)
    assert loaded.policy.recovery.max_restarts == 7
    assert loaded.policy.stopping.grace_s == 120
    assert loaded.sources == ("preset overnight", str(file))
    assert loaded.origin[key] == f"{file}:3"
    loaded = load(None, "overnight", {key: 9, "name": None}, directory=tmp_path)
    assert loaded.policy.recovery.max_restarts == 9
    assert loaded.origin[key] == "--max-restarts"


def test_limits_of_a_run_stay_unless_a_setting_changes_them(tmp_path: Path) -> None:
    limits = Limits(detection=Detection(silence_s=9, busy_s=8))
    kept = load(None, None, {"detection.poll_s": 2}, directory=tmp_path, limits=limits).policy
    assert kept.limits == Limits(detection=Detection(silence_s=9, busy_s=8, poll_s=2))


def test_problems_of_all_sources_come_together(tmp_path: Path) -> None:
    (tmp_path / "wtrain.yaml").write_text("nmae: x\n")
    with pytest.raises(ConfigError) as caught:
        load(None, "overnite", {"recovery.max_restarts": 99}, directory=tmp_path)
    words = caught.value.render()
    for part in (
        "did you mean 'overnight'?",
        "did you mean 'name'?",
        "--max-restarts",
        "at most 50",
    ):
        assert part in words


BAD_ARGUMENTS = ["out/last.pt", "--resume {ckeckpoint}", "--resume 'x {ckpt}", "", "--"]


@pytest.mark.parametrize("text", BAD_ARGUMENTS)
def test_resume_arguments_must_resume(file: Path, text: str) -> None:
    """Refused at the start, with every other problem, from a file and from the flag alike."""
    hint = '--resume-arg "--resume {checkpoint}"'
    given = f"recovery:\n  max_restarts: 99\n  resume_arg: {json.dumps(text)}\n"
    in_file = problems(file, given).render()
    for part in ("some.yaml:2", "some.yaml:3", hint):
        assert part in in_file
    with pytest.raises(ConfigError) as caught:
        load(None, None, {"recovery.resume_arg": text, "recovery.max_restarts": 99})
    for part in ("--resume-arg", "--max-restarts", hint):
        assert part in caught.value.render()
    paths = ("--resume {checkpoint}", "resume={ckpt}", "auto")
    for fine in (*paths, "--resume", "--init_from=resume", "--auto_resume", "resume=true"):
        assert load(None, None, {"recovery.resume_arg": fine}).policy.recovery.resume_arg == fine


def test_at_most_fifty_problems_are_printed(file: Path) -> None:
    """A file that is something else does not scroll the terminal away."""
    error = problems(file, "".join(f"unknown_{number}: 1\n" for number in range(200)))
    assert len(error.problems) == 50
    assert error.render().endswith("and 150 more")


@hypothesis.settings(max_examples=25)
@given(st.data())
def test_a_dumped_policy_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    values = {}
    texts = st.text(max_size=30).filter(lambda text: "\0" not in text)
    special = {
        "recovery.resume_arg": texts.map(
            lambda text: f"--resume {{checkpoint}} {shlex.quote(text)}"
        ),
        "notify.commands": st.lists(
            texts.filter(str.strip).map(lambda text: f"run_finished={text}"), max_size=3
        ).map(tuple),
    }
    kept = sorted(settings().keys() - {"notify.urls"})  # the others are secrets
    for key in data.draw(st.sets(st.sampled_from(kept), max_size=8)):
        setting = settings()[key]
        values[key] = data.draw(
            {
                "time": st.floats(1.0, 1e6),
                "whole number": st.integers(65536, 1 << 40)
                if setting.most is None
                else st.integers(0, int(setting.most)),
                "true or false": st.booleans(),
                "text": special.get(key, texts),
                "choice": st.sampled_from(setting.choices or ("",)),
                "list of texts": special.get(key, st.lists(texts, max_size=3).map(tuple)),
            }[setting.kind]
        )
    policy = build(values)
    text = dump_policy(policy)
    loaded = yaml.safe_load(text)
    for key, value in flatten(policy).items():
        place = loaded
        for name in key.split("."):
            place = place[name]
        assert settings()[key].check(place) == value


def test_every_setting_and_section_has_words() -> None:
    assert all(setting.text for setting in settings().values())
    assert all(sections().values())
    assert flatten(Policy()) == {key: setting.default for key, setting in settings().items()}
    for setting in settings().values():
        assert setting.check(setting.default) == setting.default


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_their_files_complete(name: str) -> None:
    """configs/<preset>.yaml says every setting, and means what --preset means."""
    policy = load(None, name, directory=REPOSITORY / "tests").policy
    assert load(REPOSITORY / "configs" / f"{name}.yaml").policy == policy
    text = (REPOSITORY / "configs" / f"{name}.yaml").read_text()
    for key, (value, why) in PRESETS[name].changes.items():
        assert value != settings()[key].default
        assert why
        assert f"{key.rpartition('.')[2]}: {scalar(value)}\n" in text


def test_a_remedy_that_is_named_comes_on_top_of_those_of_a_preset(tmp_path: Path) -> None:
    """Else one more would silently take the others away; --without takes one away."""
    given = {"recovery.with_remedies": ("xet-off",), "recovery.without_remedies": ("spawn",)}
    recovery = load(None, "windows", given, directory=tmp_path).policy.recovery
    assert recovery.with_remedies == ("num-workers-0", "omp-1", "tokenizers-off", "xet-off")
    recovery = load(None, "overnight", given, directory=tmp_path).policy.recovery
    assert recovery.with_remedies == ("xet-off",)


def test_explain() -> None:
    assert "flag:    --max-restarts (or WTRAIN_MAX_RESTARTS)" in explain("recovery.max_restarts")
    assert explain("max_restarts") == explain("recovery.max_restarts")
    assert "detection.silence_s" in explain("detection")
    assert all(key in explain("") for key in settings())
    with pytest.raises(WtrainError) as caught:
        explain("recovery.max_restart")
    assert caught.value.hint == "did you mean 'recovery.max_restarts'?"


def test_derived_pages_and_files_are_current() -> None:
    """docs/config.md, docs/events.md and configs/ are what scripts/generate_docs.py writes."""
    done = run_command(
        [sys.executable, REPOSITORY / "scripts" / "generate_docs.py", "--check"], code=None
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_presets_work_from_a_built_wheel(tmp_path: Path) -> None:
    """A wheel holds every preset: `--preset overnight` needs no file of the repository."""
    code = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "watchdog_train"):
        if (REPOSITORY / name).exists():
            (source / name).symlink_to(REPOSITORY / name)
    if not (source / "README.md").exists():
        (source / "README.md").write_text("wtrain\n")
    run_command(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], cwd=source, timeout_s=120
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shown = run_command(
        [sys.executable, "-m", "watchdog_train", "config", "show", "--preset", "overnight"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
    )
    assert "  max_restarts: 10\n" in shown.stdout
