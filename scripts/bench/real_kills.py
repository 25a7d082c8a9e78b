"""Kills real trainings around their saves, under wtrain, and compares what comes of it.

    python scripts/bench/real_kills.py [--kills 20] [--makes plain,trainer,lightning] [--seed 1]

An unmodified script is killed (SIGKILL, from outside) up to a quarter of a second after one of its
checkpoints has appeared, so many kills fall into a save. A kill counts when
- the attempt after it went on from the newest checkpoint that the real libraries can load: a
  command at `--on before_restart` loads them all, before anything is written again,
- the last step was reached, and
- the checksum of the weights is bit for bit that of a training that nobody disturbed.
Every other kill has remedies in effect from the start, by turns those of REMEDIES.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measured import BIN, REPOSITORY, machine
from whole_runs import ended, environment

RUN_S = 240.0
REMEDIES = (
    ("num-workers-0",),
    ("num-workers-0", "omp-1", "tokenizers-off"),
    # Not spawn: examples/hf_trainer.py gives its workers a lock of the fork context.
    ("persistent-workers-off", "pin-memory-off", "file-system-sharing"),
)

ORACLE = """\
import json, pathlib, re, sys
import torch
from safetensors.torch import load_file

def loads(path):
    try:
        if path.is_dir():
            load_file(path / "model.safetensors")
            json.loads((path / "trainer_state.json").read_text())
            for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
                torch.load(path / name, weights_only=False)
        else:
            torch.load(path, weights_only=False)
        return True
    except Exception:
        return False

def step(path):
    return int(re.findall(r"(?:step[=-]|checkpoint-)0*([0-9]+)", path.name)[0])

found = sorted(pathlib.Path().glob(sys.argv[1]), key=step, reverse=True)
good = next((path for path in found if loads(path)), None)
torn = [path.name for path in found if good is None or step(path) > step(good)]
answer = {"newest": str(good.resolve()) if good else None, "torn": torn}
pathlib.Path("oracle.json").write_text(json.dumps(answer))
"""


HEAD = """\
| training | kills | a torn one was newer | right checkpoint, last step reached \
| same weights, no remedy | same weights, with remedies |
|---|---|---|---|---|---|"""


class Make(NamedTuple):
    """A script, and where its checkpoints appear."""

    command: Sequence[str]
    pattern: str
    options: Sequence[str] = ()


PROGRAMS = REPOSITORY / "tests" / "programs"
EXAMPLES = REPOSITORY / "examples"
MAKES = {
    "plain": Make(
        (str(PROGRAMS / "loader_fork_lock.py"), "--hang-at", "-1", "--step-s", "0.1"),
        "checkpoints/step-*.pt",
        ("--resume-arg", "--resume {checkpoint}"),
    ),
    "trainer": Make((str(EXAMPLES / "hf_trainer.py"),), "hf-output/checkpoint-*"),
    "lightning": Make(
        (str(EXAMPLES / "lightning_fit.py"),),
        "lightning-output/lightning_logs/*/checkpoints/*.ckpt",
    ),
}


class Kill(NamedTuple):
    """What came of one."""

    remedies: tuple[str, ...]
    problem: str | None
    torn: int
    """Checkpoints newer than the newest that can be loaded, at the time of the restart."""
    equal: bool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--makes", default=",".join(MAKES))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(machine(), flush=True)
    failed = 0
    rows = []
    for name in args.makes.split(","):
        chance = random.Random(f"{args.seed} {name}")
        with tempfile.TemporaryDirectory(prefix="wtrain-bench-") as folder:
            expected = undisturbed(MAKES[name], Path(folder))
        print(f"{name}: undisturbed: {expected}", flush=True)
        kills = []
        for number in range(args.kills):
            remedies = REMEDIES[number // 2 % len(REMEDIES)] if number % 2 else ()
            with tempfile.TemporaryDirectory(prefix="wtrain-bench-") as folder:
                one = kill(MAKES[name], remedies, chance, Path(folder), expected)
            if one is None:
                print(f"{name} {number + 1}: the kill came too late and does not count", flush=True)
                continue
            kills.append(one)
            said = one.problem or ("equal" if one.equal else "another checksum")
            print(f"{name} {number + 1}: {' '.join(remedies) or 'no remedy'}: {said}", flush=True)
        failed += sum(one.problem is not None or not one.equal for one in kills)
        rows.append(row(name, kills))
    print("\n" + HEAD)
    print("\n".join(rows))
    sys.exit(1 if failed else 0)


def row(name: str, kills: Sequence[Kill]) -> str:
    """One line of the table."""
    plain = [one for one in kills if not one.remedies]
    others = [one for one in kills if one.remedies]
    cells = [
        name,
        str(len(kills)),
        str(sum(bool(one.torn) for one in kills)),
        f"{sum(one.problem is None for one in kills)} of {len(kills)}",
        f"{sum(one.equal for one in plain)} of {len(plain)}",
        f"{sum(one.equal for one in others)} of {len(others)}",
    ]
    return "| " + " | ".join(cells) + " |"


def undisturbed(make: Make, place: Path) -> str:
    """The last line of the training by itself."""
    code, words = ended([sys.executable, *make.command], place, environment(place), RUN_S)
    if code != 0:
        sys.exit(f"it does not even run alone: exit {code}\n{words}")
    return last_line(words)


def step_of(line: str) -> str:
    return line.partition(" checksum=")[0]


def last_line(words: str) -> str:
    return next((line for line in reversed(words.splitlines()) if line.startswith("finished")), "")


def kill(
    make: Make, remedies: tuple[str, ...], chance: random.Random, place: Path, expected: str
) -> Kill | None:
    """One run, killed once; None when it came too late."""
    (place / "oracle.py").write_text(ORACLE)
    with_remedies = [word for remedy in remedies for word in ("--with", remedy)]
    oracle = f"{sys.executable} oracle.py '{make.pattern}'"
    command = [
        str(BIN / "wtrain"), "run", *make.options, *with_remedies, "--on",
        f"before_restart={oracle}", "--", sys.executable, *make.command,
    ]  # fmt: skip
    nth, late_s = chance.randint(1, 4), chance.uniform(0.0, 0.25)
    log = place / "said.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=place, env=environment(place), stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        _kill_after(make, place, process, nth, late_s)
        code: int | None = process.wait(RUN_S)
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        return Kill(remedies, f"not at its end in time: {error}", 0, equal=False)
    return judged(place, code, log.read_text("utf-8", "replace"), remedies, expected)


def _kill_after(
    make: Make, place: Path, process: subprocess.Popen[bytes], nth: int, late_s: float
) -> None:
    until = time.monotonic() + RUN_S
    seen: set[Path] = set()
    # Lightning keeps the newest only: those that are gone again count, too.
    while len(seen := seen | set(place.glob(make.pattern))) < nth:
        if process.poll() is not None:
            raise TimeoutError(f"it ended by itself, exit {process.returncode}")
        if time.monotonic() > until:
            raise TimeoutError(f"{nth} checkpoints never appeared")
        time.sleep(0.002)
    launched = next(event for event in events(place) if event["type"] == "attempt_launched")
    time.sleep(late_s)
    try:
        os.kill(launched["pid"], signal.SIGKILL)
    except ProcessLookupError:
        raise TimeoutError("it had ended before the kill") from None


def events(place: Path) -> list[dict[str, Any]]:
    """The log of the run so far."""
    lines = (place / "wtrain-runs/latest/events.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def judged(
    place: Path, code: int | None, words: str, remedies: tuple[str, ...], expected: str
) -> Kill | None:
    """What came of it, None for a training that was through before its kill: by the log of the run
    and by what the real libraries could load.
    """
    log = events(place)
    if not (place / "oracle.json").exists():
        if code == 0 and step_of(last_line(words)) == step_of(expected):
            return None
        tail = " | ".join(words.splitlines()[-3:])
        return Kill(remedies, f"no restart, exit {code}: {tail}", 0, equal=False)
    answer = json.loads((place / "oracle.json").read_text())
    chosen = [event["path"] for event in log if event["type"] == "checkpoint_chosen"]
    launched = [event for event in log if event["type"] == "attempt_launched"]
    last = last_line(words)
    took = {event["remedy"] for event in log if event["type"] == "remedy_taken" and event["took"]}
    problem = None
    if code != 0 or len(launched) != 2:
        problem = f"exit {code}, {len(launched)} attempts"
    elif [os.path.realpath(path) for path in chosen] != (
        [answer["newest"]] if answer["newest"] else []
    ):
        problem = f"went on from {chosen}, and {answer['newest']} can be loaded"
    elif step_of(last) != step_of(expected):
        problem = f"ended with {last!r}"
    elif not any(remedy in took for remedy in remedies) and remedies:
        problem = f"no remedy took: {sorted(took)}"
    return Kill(remedies, problem, len(answer["torn"]), equal=last == expected)


if __name__ == "__main__":
    main()
