"""The batch script for Slurm: what stands in it, and what a shell makes of it.

srun, scontrol and wtrain are stand-ins that write down how they were called; the shell is real.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.golden.compare import assert_golden
from tests.support import wait_until
from watchdog_train.cli import main
from watchdog_train.errors import WtrainError
from watchdog_train.service.slurm import SlurmJob, explained, script

BASH = shutil.which("bash") or ""
pytestmark = pytest.mark.skipif(not BASH, reason="no bash here")


def job(**changes: Any) -> SlurmJob:
    asked = {
        "name": "sft",
        "wtrain": ("/opt/venv/bin/wtrain",),
        "flags": ("--resume-arg", "--resume {checkpoint}"),
        "command": ("torchrun", "--nproc-per-node=8", "train.py", "--lr", "1e-4"),
        "cwd": "/data/runs",
        "coordination": "/data/runs/wtrain-meet",
        "nodes": 4,
        "asked": {"gpus-per-node": "8", "time": "1-00:00:00"},
    }
    return SlurmJob(**{**asked, **changes})


VARIANTS = {
    "nodes": job(),
    "one_node": job(nodes=1, name="my night!"),
    "excluding": job(exclude_guilty=True),
    "tasks": job(nodes=2, tasks_per_node=8, command=("python", "train.py"), flags=()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_script_is_as_recorded(name: str) -> None:
    """Whole, and only the lines to add; a shell can read both."""
    for text, golden in (
        (script(VARIANTS[name]), f"slurm_{name}.sh.txt"),
        (explained(VARIANTS[name]), f"slurm_{name}.explained.txt"),
    ):
        assert_golden(golden, text)
        subprocess.run([BASH, "-n"], input=text, text=True, check=True, timeout=30)


WORDS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with stand-ins, which write down their words, each on a line of its own."""
    path = tmp_path_factory.mktemp("slurm")
    stand_ins = {
        "srun": 'printf "%s\\0" srun "$@" >> "$OUT"; '
        'shift 2; [ -n "$WAIT_FOR" ] && { touch "$OUT.waits"; '
        'while [ ! -e "$WAIT_FOR" ]; do sleep 0.05; done; }; "$@"; exit "$CODE"',
        "scontrol": 'printf "%s\\0" scontrol "$@" >> "$OUT"; case "$1 $2" in '
        '"show node") [ "$3" = "${3%%.*}" ];; '
        '"show job") echo "JobId=77 ExcNodeList=$BEFORE NodeList=n[1-2]";; '
        '"update "*) [ -e "$OUT.told" ] || { touch "$OUT.told"; echo "not now"; exit 1; };; esac',
        "sbatch": 'printf "%s\\0" sbatch "$@" >> "$OUT"; [ -z "$NO_NODES" ]',
        "wtrain": 'printf "%s\\0" wtrain "$@" >> "$OUT"; '
        'for one in $BLAMES; do touch ".sft-77.guilty/$one"; done; '
        '[ "$1" = stop ] && [ -n "$WAIT_FOR" ] && touch "$WAIT_FOR"; exit 0',
    }
    for name, text in stand_ins.items():
        (path / name).write_text(f"#!{BASH}\n{text}\n")
        (path / name).chmod(0o755)
    return path


class Batch:
    """One start of the script by a stand-in of Slurm."""

    def __init__(self, place: Path, cwd: Path, made: SlurmJob, **environment: str) -> None:
        self.out = cwd / "called"
        self.out.unlink(missing_ok=True)
        self.errors = cwd / "errors"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [BASH, "-c", script(made)],
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
                    "SLURM_NODEID": "1",
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


def made_for(cwd: Path, place: Path, **changes: Any) -> SlurmJob:
    return job(
        cwd=str(cwd),
        coordination=str(cwd / "meet"),
        wtrain=(str(place / "wtrain"),),
        **changes,
    )


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(WORDS)
def test_every_word_reaches_the_program(place: Path, tmp_path: Path, words: list[str]) -> None:
    """Quotes, variables and line ends are no syntax."""
    batch = Batch(place, tmp_path, made_for(tmp_path, place, command=("run.sh", *words)))
    assert batch.process.wait(30) == 0
    said = batch.out.read_bytes().split(b"\0")
    wanted = [word.encode() for word in ("--", "run.sh", *words)]
    assert said[: len(said)].count(b"run.sh") == 2  # as srun's words, and as those of wtrain
    begin = said.index(b"--")
    assert said[begin : begin + len(wanted)] == wanted


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (75, True), (76, False), (77, False)])
def test_what_an_exit_code_does(place: Path, tmp_path: Path, code: int, requeued: bool) -> None:
    """75 is another try of the same job; a stop by a person and a verdict are final."""
    batch = Batch(place, tmp_path, made_for(tmp_path, place), CODE=str(code))
    assert batch.process.wait(30) == code
    assert (["scontrol", "requeue", "77"] in batch.calls()) == requeued
    assert (tmp_path / ".sft-77-node0.requeued").exists() == requeued
    assert (tmp_path / "meet").stat().st_mode & 0o777 == 0o700


EXCLUDED = {
    "one": ("n2", "(null)", "", "n2"),
    "two, by their whole names": ("n2.cluster n3.cluster", "(null)", "", "n2,n3"),
    "one more than the user": ("n2", "n[7-9]", "", "n[7-9],n2"),
    "nobody is guilty": ("", "(null)", "", None),
    "too many": ("n1 n2 n3", "(null)", "", None),
    "none would be left": ("n2", "(null)", "1", None),
}


@pytest.mark.parametrize(
    ("guilty", "before", "no_nodes", "wanted"), EXCLUDED.values(), ids=EXCLUDED
)
def test_guilty_machines_are_excluded_once_the_job_is_requeued(
    place: Path, tmp_path: Path, guilty: str, before: str, no_nodes: str, wanted: str | None
) -> None:
    """What was excluded stays so; Slurm is asked again as long as it refuses."""
    made = made_for(tmp_path, place, exclude_guilty=True)
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
    assert not (tmp_path / ".sft-77.guilty").exists()


def test_only_guilty_machines_of_this_start_are_excluded(place: Path, tmp_path: Path) -> None:
    """What was there before says nothing of this start; an end with 0 excludes nobody."""
    (tmp_path / ".sft-77.guilty").mkdir()
    (tmp_path / ".sft-77.guilty" / "n9").touch()
    made = made_for(tmp_path, place, exclude_guilty=True)
    batch = Batch(place, tmp_path, made, BLAMES="n2", CODE="75")
    assert batch.process.wait(30) == 75
    assert ["scontrol", "update", "JobId=77", "ExcNodeList=n2"] in batch.calls()
    batch = Batch(place, tmp_path, made, BLAMES="n2", CODE="0")
    assert batch.process.wait(30) == 0
    assert [call[0] for call in batch.calls() if call[0] != "srun"] in ([], ["wtrain"])


def test_a_requeued_job_goes_on_with_its_runs(place: Path, tmp_path: Path) -> None:
    """Only when we have asked for it; after the failure of a node it begins anew. It has an end."""
    made = made_for(tmp_path, place)
    for restarts, asked, wanted in (("1", True, "restart"), ("1", False, "run")):
        if asked:
            (tmp_path / ".sft-77-node0.requeued").touch()
        batch = Batch(place, tmp_path, made, SLURM_RESTART_COUNT=restarts)
        assert batch.process.wait(30) == 0
        said = batch.out.read_bytes().split(b"\0")
        last = len(said) - 1 - said[::-1].index(b"wtrain")
        assert said[last + 1] == wanted.encode()
        if asked:
            assert said[last + 2 : last + 4] == [b"--keep-budget", b"sft-77-node1"]
    batch = Batch(place, tmp_path, made, SLURM_RESTART_COUNT="5", CODE="75")
    assert batch.process.wait(30) == 75
    assert b"scontrol" not in batch.out.read_bytes()


def test_the_end_of_the_time_is_answered(place: Path, tmp_path: Path) -> None:
    """A save, then a stop, then the requeue, while srun still runs; nobody else gets the signal."""
    made = made_for(tmp_path, place)
    gate = tmp_path / "stopped"
    batch = Batch(place, tmp_path, made, CODE="77", WAIT_FOR=str(gate))
    wait_until((tmp_path / "called.waits").exists, 30, "srun runs")
    batch.process.send_signal(signal.SIGUSR1)
    assert batch.process.wait(60) == 77
    said = batch.out.read_bytes().split(b"\0")
    saved, stopped = said.index(b"save"), said.index(b"stop")
    assert saved < stopped < said.index(b"scontrol")
    assert said[saved : saved + 3] == [b"save", b"--wait", b"sft-77-node0"]
    assert said[stopped + 1] == b"sft-77-node0"


BAD = {
    "a line end": {"asked": {"partition": "gpu\n#SBATCH --uid=0"}},
    "a space": {"asked": {"account": "a b"}},
    "an option": {"asked": {"partition": "-x"}},
    "a time": {"asked": {"time": "tomorrow"}},
    "no nodes": {"nodes": 0},
    "no tasks": {"tasks_per_node": -1},
    "a warning too late": {"warn_s": 5},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_what_would_be_another_script_is_refused(changes: dict[str, Any]) -> None:
    """With exit code 78 and what is wanted, by both ways of printing."""
    for write in (script, explained):
        with pytest.raises(WtrainError, match="is not") as refused:
            write(job(**changes))
        assert refused.value.exit_code == 78


def test_a_place_that_is_said_in_the_command_is_warned_of() -> None:
    """After a requeue to other nodes it would be the old one."""
    command = ("torchrun", "--rdzv-endpoint=n1:29500", "--master_port", "1", "train.py")
    assert "# --master_port --rdzv-endpoint stays as it is" in script(job(command=command))
    assert "stays as it is" not in script(job())


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags of run go into the script; those that belong to one node are refused."""
    code = main.run(["slurm", "--nodes", "2", "--max-restarts", "3", "--", "torchrun", "train.py"])
    text = capsys.readouterr().out
    assert code == 0
    assert "#SBATCH --nodes=2" in text
    assert "--nodes slurm --coordination" in text
    assert "--max-restarts 3 --" in text
    assert main.run(["slurm", "--", "torchrun", "--nnodes", "3", "train.py"]) == 0
    assert "#SBATCH --nodes=3" in capsys.readouterr().out
    assert main.run(["slurm", "--nodes", "2", "--", "torchrun", "--nnodes", "3", "train.py"]) == 78
    at_store = ["--nodes", "2", "--coordination", "tcp://n1:29400"]
    twice = ["--exclude-guilty", "--guilty-nodes", "bad"]
    for words in (at_store, twice, ["--nodes", "auto"], ["--node-rank", "1"], ["--time", "x"], []):
        assert main.run(["slurm", *words, *(["--", "x"] if words else [])]) == 78
