"""Did a restart resume? By the training's own count, whatever it has loaded and however."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import CompletedRun, run_fast, run_wtrain, script, sentence

TRAIN = """
import argparse, glob, os, shutil, signal, sys, time, torch

parser = argparse.ArgumentParser()
if HOW not in ("look", "nothing"):
    parser.add_argument("--resume")
parser.add_argument("data", nargs="*")
args = parser.parse_args()
model, first = torch.nn.Linear(4, 1), 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
newest = max(glob.glob("ck/step-*.pt"), default=None)
if HOW == "look" and newest:
    print("its loss", torch.load(newest)["loss"])
if HOW == "copy" and args.resume:
    shutil.copy(args.resume, "/dev/shm/%d.pt" % os.getpid())
    first = torch.load("/dev/shm/%d.pt" % os.getpid())["step"] + 1
    os.unlink("/dev/shm/%d.pt" % os.getpid())
os.makedirs("ck", exist_ok=True)
with open("starts", "a") as file:
    file.write("%d " % first)
for step in range(first, 41):
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    if step % 5 == 0:
        torch.save({"step": step, "loss": loss.item()}, "ck/step-%06d.pt" % step)
    for at in (13, 23, 33):
        if step == at and not os.path.exists("killed-%d" % at) and (HOW == "copy" or at == 23):
            open("killed-%d" % at, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def train(how: str, folder: Path, *options: str, words: tuple[str, ...] = ()) -> CompletedRun:
    return run_fast(folder, (*script(folder, f"HOW = {how!r}\n{TRAIN}"), *words), *options)


def starts(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "starts").read_text().split()]


@pytest.mark.timeout(150)
def test_a_script_that_loads_a_copy_resumes_from_its_newest_each_time(tmp_path: Path) -> None:
    """By its own option, which nobody had to name; the end is at its own last step."""
    run = train("copy", tmp_path).check(0)
    assert starts(tmp_path) == [1, 11, 21, 31], run.describe()
    assert [one["ok"] for one in run.of_type("resume_verified")] == [True] * 3, run.describe()
    assert "success: exit code 0; step 40" in run.stderr
    assert "Resume: a restart adds --resume {checkpoint}" in run.stderr


@pytest.mark.timeout(150)
@pytest.mark.parametrize("how", ["look", "nothing"])
def test_a_training_that_begins_at_step_1_saves_over_nothing(how: str, tmp_path: Path) -> None:
    """Also one that loads its newest checkpoint to print a number of it."""
    run = train(how, tmp_path).check(76)
    assert starts(tmp_path) == [1, 1], run.describe()
    assert not any(one["ok"] for one in run.of_type("resume_verified")), run.describe()
    why = sentence(run.only("given_up")["why"])
    assert "ck/step-000020.pt" in why
    assert (tmp_path / "ck" / "step-000020.pt").exists()
    times = sorted((path.stat().st_mtime, path.name) for path in (tmp_path / "ck").iterdir())
    assert [name for _, name in times] == [f"step-{at:06d}.pt" for at in (5, 10, 15, 20)]
    assert "Resume: no way is known" in run.stderr
    assert "attempt 2 starts without a known way to resume from step 20" in run.stderr


@pytest.mark.timeout(150)
def test_an_option_is_put_before_the_scripts_own_dashes(tmp_path: Path) -> None:
    run = train("copy", tmp_path, words=("--", "data.txt")).check(0)
    assert starts(tmp_path) == [1, 11, 21, 31], run.describe()


def test_an_option_for_the_text_of_a_shell_is_refused(tmp_path: Path) -> None:
    command = ("--", "bash", "-c", "python train.py")
    told = run_wtrain("run", "--resume-arg", "--resume {checkpoint}", *command, cwd=tmp_path)
    assert 'python train.py "$@"' in told.check(78).stderr


@pytest.mark.parametrize(
    ("command", "near"), [(("pyhton", "x.py"), "python"), ((sys.executable, "bas.py"), "base.py")]
)
def test_a_near_miss_in_the_command_is_named(
    command: tuple[str, ...], near: str, tmp_path: Path
) -> None:
    (tmp_path / "base.py").touch()
    told = run_wtrain("run", "--", *command, cwd=tmp_path).check(78)
    assert f"did you mean {near}" in told.stderr


def test_a_misspelt_remedy_in_a_file_is_a_problem_of_it(tmp_path: Path) -> None:
    (tmp_path / "wtrain.yaml").write_text("recovery:\n  with_remedies: [omp-2]\n")
    told = run_wtrain("config", "check", cwd=tmp_path).check(78)
    assert "omp-1" in told.stderr
