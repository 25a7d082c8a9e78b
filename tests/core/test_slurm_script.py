"""examples/slurm.sbatch: what stands in it, and what a shell makes of it.

srun, scontrol and wtrain are stand-ins that write down how they were called; the shell is real.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import REPOSITORY, wait_until
from watchdog_train.cli import group

BASH = shutil.which("bash") or ""
pytestmark = pytest.mark.skipif(not BASH, reason="no bash here")


TEXT = (REPOSITORY / "examples" / "slurm.sbatch").read_text()


def script(*command: str, exclude: bool = False) -> str:
    """The template with the lines that a user changes."""
    text = TEXT
    if command:
        at = text.index("command=(")
        text = text[:at] + f"command=({shlex.join(command)})" + text[text.index("\n", at) :]
    return text.replace("exclude_guilty=no", "exclude_guilty=yes") if exclude else text


def test_the_template_says_what_wtrain_takes() -> None:
    """A shell can read it, and the commands in it have these options."""
    subprocess.run([BASH, "-n"], input=TEXT, text=True, check=True, timeout=30)
    whole = group.build_group()
    for name in ("run", "restart", "save", "stop"):
        assert whole.get_command(click.Context(whole), name) is not None
        said = re.findall(rf"wtrain {name}\b(.*)", TEXT)
        assert said, name
    run = whole.get_command(click.Context(whole), "run")
    assert run is not None
    flags = ["--name", "x", "--nodes", "slurm", "--coordination", "tcp://n1:20000"]
    resume = ["--resume-arg", "--resume {checkpoint}"]
    assert run.make_context("run", [*flags, *resume, "--", "train"]).params["nodes"] == "slurm"
    restart = whole.get_command(click.Context(whole), "restart")
    assert restart is not None
    flags = ["--keep-budget", "--coordination", "tcp://n1:20000", "x-77"]
    assert restart.make_context("restart", flags).params["coordination"] == "tcp://n1:20000"


WORDS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with stand-ins, which write down their words, each on a line of its own."""
    path = tmp_path_factory.mktemp("slurm")
    stand_ins = {
        "srun": 'printf %s "${WTRAIN_JOB_KEY:-none}" > key; printf "%s\\0" srun "$@" >> "$OUT"; '
        'shift 2; [ -n "$WAIT_FOR" ] && { touch "$OUT.waits"; '
        'while [ ! -e "$WAIT_FOR" ]; do sleep 0.05; done; }; "$@"; exit "$CODE"',
        "scontrol": 'printf "%s\\0" scontrol "$@" >> "$OUT"; case "$1 $2" in '
        '"show node") [ "$3" = "${3%%.*}" ];; '
        '"show job") echo "JobId=77 ExcNodeList=$BEFORE NodeList=n[1-2]";; '
        '"update "*) [ -e "$OUT.told" ] || { touch "$OUT.told"; echo "not now"; exit 1; };; esac',
        "sbatch": 'printf "%s\\0" sbatch "$@" >> "$OUT"; [ -z "$NO_NODES" ]',
        "wtrain": '[ "$1" = key ] && { echo secret; exit; }; printf "%s\\0" wtrain "$@" >> "$OUT"; '
        'all=; for one in $BLAMES; do all="$all${all:+, }{\\"host\\": \\"$one\\"}"; done; '
        '[ "$1" = status ] && echo "{\\"guilty_nodes\\": [$all]}"; '
        '[ "$1" = stop ] && [ -n "$WAIT_FOR" ] && touch "$WAIT_FOR"; exit 0',
    }
    for name, text in stand_ins.items():
        (path / name).write_text(f"#!{BASH}\n{text}\n")
        (path / name).chmod(0o755)
    return path


class Batch:
    """One start of the script by a stand-in of Slurm."""

    def __init__(self, place: Path, cwd: Path, made: str, **environment: str) -> None:
        self.out = cwd / "called"
        self.out.unlink(missing_ok=True)
        self.errors = cwd / "errors"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [BASH, "-c", made],
                cwd=cwd,
                stderr=errors,
                env={
                    "PATH": f"{place}:{os.environ['PATH']}",
                    "OUT": str(self.out),
                    "CODE": "0",
                    "WAIT_FOR": "",
                    "BLAMES": "",
                    "BEFORE": "(null)",
                    "NO_NODES": "",
                    "SLURM_JOB_PARTITION": "gpu",
                    "SLURM_JOB_NUM_NODES": "4",
                    "SLURM_JOB_ID": "77",
                    "SLURM_JOB_NAME": "sft",
                    "SLURM_NODEID": "1",
                    "SLURMD_NODENAME": "n1",
                    **environment,
                },
            )

    def calls(self) -> list[list[str]]:
        """The stand-ins' words in their order, a list for each call."""
        found: list[list[str]] = []
        text = self.out.read_bytes().decode("utf-8", "surrogateescape") if self.out.exists() else ""
        for word in text.split("\0")[:-1]:
            if word in ("srun", "scontrol", "sbatch") or (word == "wtrain" and not _inside(found)):
                found.append([])
            found[-1].append(word)
        return found


def _inside(found: list[list[str]]) -> bool:
    """Whether this wtrain is a word of srun's own command."""
    return bool(found) and found[-1][0] == "srun" and len(found[-1]) < 4


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(WORDS)
def test_every_word_reaches_the_program(place: Path, tmp_path: Path, words: list[str]) -> None:
    batch = Batch(place, tmp_path, script("run.sh", *words))
    assert batch.process.wait(30) == 0
    said = batch.out.read_bytes().split(b"\0")
    wanted = [word.encode() for word in ("--", "run.sh", *words)]
    assert said[: len(said)].count(b"run.sh") == 2  # as srun's words, and as those of wtrain
    begin = said.index(b"--")
    assert said[begin : begin + len(wanted)] == wanted


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (75, True), (76, False), (77, False)])
def test_what_an_exit_code_does(place: Path, tmp_path: Path, code: int, requeued: bool) -> None:
    """75 is another try of the same job; a stop by a person and a verdict are final."""
    batch = Batch(place, tmp_path, script(), CODE=str(code))
    assert batch.process.wait(30) == code
    assert (["scontrol", "requeue", "77"] in batch.calls()) == requeued
    assert (tmp_path / ".sft-77.requeued").exists() == requeued


EXCLUDED = {
    "one": ("n2", "(null)", "", "n2"),
    "two, by their whole names": ("n2.cluster n3.cluster", "(null)", "", "n2,n3"),
    "one more than the user": ("n2", "n[7-9]", "", "n[7-9],n2"),
    "nobody is guilty": ("", "(null)", "", None),
    "too many": ("n1 n2 n3", "(null)", "", None),
    "none would be left": ("n2", "(null)", "1", None),
    "no word to a shell": ("$(id) n2", "(null)", "", "n2"),
}


@pytest.mark.parametrize(
    ("guilty", "before", "no_nodes", "wanted"), EXCLUDED.values(), ids=EXCLUDED
)
def test_guilty_machines_are_excluded_once_the_job_is_requeued(
    place: Path, tmp_path: Path, guilty: str, before: str, no_nodes: str, wanted: str | None
) -> None:
    """What was excluded stays so; Slurm is asked again as long as it refuses."""
    made = script(exclude=True)
    told = {"BLAMES": guilty, "BEFORE": before, "NO_NODES": no_nodes, "CODE": "75"}
    batch = Batch(place, tmp_path, made, **told)
    assert batch.process.wait(30) == 75
    calls, said = batch.calls(), batch.errors.read_text()
    requeued = calls.index(["scontrol", "requeue", "77"])
    updates = [call for call in calls if call[:2] == ["scontrol", "update"]]
    if wanted is None:
        assert not updates
        assert ("none is excluded" in said) == bool(guilty)
    else:
        assert updates == [["scontrol", "update", "JobId=77", f"ExcNodeList={wanted}"]] * 2
        assert calls.index(updates[0]) > requeued
        assert f"excluded from this job: {wanted}" in said


@pytest.mark.parametrize(("exclude", "code"), [(True, 0), (False, 75)])
def test_nobody_is_excluded_unasked_or_after_a_good_end(
    place: Path, tmp_path: Path, exclude: bool, code: int
) -> None:
    """Only a job that is requeued changes its list of nodes."""
    batch = Batch(place, tmp_path, script(exclude=exclude), BLAMES="n2", CODE=str(code))
    assert batch.process.wait(30) == code
    assert not [call for call in batch.calls() if call[:2] == ["scontrol", "update"]]


@pytest.mark.parametrize(
    ("nodes", "tasks", "flags"),
    [
        ("1", "1", []),
        ("4", "1", ["--nodes", "slurm", "--coordination", "tcp://n1:20077"]),
        ("1", "8", ["--coordination", "tcp://n1:20077"]),
    ],
)
def test_how_many_supervisors_there_are(
    place: Path, tmp_path: Path, nodes: str, tasks: str, flags: list[str]
) -> None:
    """One alone meets nobody; one a node, or one a task."""
    size = {"SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS_PER_NODE": tasks}
    batch = Batch(place, tmp_path, script(), **size)
    assert batch.process.wait(30) == 0
    called = batch.out.read_bytes().decode().split("\0")
    begin = called.index("sft-77") + 1
    assert called[begin : begin + len(flags)] == flags
    assert ("--coordination" in called) == bool(flags)
    assert (tmp_path / "key").read_text() == ("secret" if flags else "none")


def test_a_requeued_job_goes_on_with_its_runs(place: Path, tmp_path: Path) -> None:
    """Only when we have asked for it; after the failure of a node it begins anew. It has an end."""
    made = script()
    for restarts, asked, wanted in (("1", True, "restart"), ("1", False, "run")):
        if asked:
            (tmp_path / ".sft-77.requeued").touch()
        batch = Batch(place, tmp_path, made, SLURM_RESTART_COUNT=restarts)
        assert batch.process.wait(30) == 0
        said = batch.out.read_bytes().split(b"\0")
        last = len(said) - 1 - said[::-1].index(b"wtrain")
        assert said[last + 1] == wanted.encode()
        if asked:
            words = [b"--keep-budget", b"--coordination", b"tcp://n1:20077", b"sft-77"]
            assert said[last + 2 : last + 6] == words
    batch = Batch(place, tmp_path, made, SLURM_RESTART_COUNT="5", CODE="75")
    assert batch.process.wait(30) == 75
    assert b"scontrol" not in batch.out.read_bytes()


def test_the_end_of_the_time_is_answered(place: Path, tmp_path: Path) -> None:
    """A save, then a stop, then the requeue, while srun still runs; nobody else gets the signal."""
    made = script()
    gate = tmp_path / "stopped"
    batch = Batch(place, tmp_path, made, CODE="77", WAIT_FOR=str(gate))
    wait_until((tmp_path / "called.waits").exists, 30, "srun runs")
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.process.wait(60) == 77
    said = batch.out.read_bytes().split(b"\0")
    saved, stopped = said.index(b"save"), said.index(b"stop")
    assert saved < stopped < said.index(b"scontrol")
    assert said[saved : saved + 3] == [b"save", b"--wait", b"sft-77"]
    assert said[stopped + 1] == b"sft-77"
