"""What a training knows as secret stays with its own files: no bundle, report or message has it."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.support import run_wtrain, start_wtrain, wait_until

ITS_OWN = {"events.jsonl", "launch.json", "plan.json", "output.log", "stdout.log", "stderr.log"}
"""A restart needs the true command line; what the training writes is the training's."""
VALUES = [
    f"Zq7{name}{number}"
    for number, name in enumerate(
        ["argv", "short", "url", "value", "line", "pass", "dict", "quoted", "basic", "variable"]
    )
]
KEY_LINE = "MIIEpAIBAAKCAQEAZq7" + "k" * 45
SCRIPT = f"""
import os, pathlib, sys, time

def login(key):
    while not pathlib.Path("crash").exists():
        time.sleep(0.05)

print("-----BEGIN PRIVATE KEY-----\\n{KEY_LINE}\\n{KEY_LINE}\\n-----END PRIVATE KEY-----")
print("Cookie: session={VALUES[2]}; the value is", os.environ["MY_SECRET"], flush=True)
login("{VALUES[4]}")
print("DB_PASS=" + os.environ["DB_PASS"], flush=True)
said = {{"pass": "{VALUES[6]}"}}
name = os.environ["MY_SECRET"]
raise RuntimeError(f"cannot log in as {{name}}: {{said}} password 'a {VALUES[7]}'")
"""


def test_no_secret_leaves_the_files_of_the_training(tmp_path: Path) -> None:
    """In argv, environment, output, source line and exception; of a dump and of a crash."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {"MY_SECRET": VALUES[3], "DB_PASS": VALUES[9]}
    url = f"https://hooks.slack.com/services/T0/{VALUES[2]}"
    command = ["python", "train.py", "--auth", VALUES[0], "-pw", VALUES[1], "--url", url]
    command += [f"--smtp-pass={VALUES[5]}", "--basic", f"u:{VALUES[8]}", "--db-pass", "12345678901"]
    running = start_wtrain(
        "run", "--max-restarts", "0", "--", *command,
        cwd=tmp_path, env=environment,
    )  # fmt: skip
    wait_until(lambda: "Cookie" in running.stdout, 30, "the training has written")
    dumped = run_wtrain("dump", cwd=tmp_path).check(0)
    (tmp_path / "crash").touch()
    run = running.result(60).check(1)
    stacks = (run.run_dir / "stalls/0001/stacks").glob("*.txt")
    assert any('login("[removed]")' in file.read_text() for file in stacks), dumped.describe()
    tail = (run.run_dir / "stalls/0002/log-tail.txt").read_text()
    assert "RuntimeError: cannot log in as [removed]" in tail
    told = {path: path.read_text("utf-8", "replace") for path in files(run.run_dir)}
    for name in ("status", "status --json", "show", "show --all --raw", "show --json", "report",
                 "ps --all"):  # fmt: skip
        said = run_wtrain(*name.split(), cwd=tmp_path, env=environment)
        told[Path(name)] = said.stdout + said.stderr
    told[Path("dump")] = dumped.stdout
    for value in (*VALUES, "12345678901", KEY_LINE):
        assert [str(path) for path, text in told.items() if value in text] == []
    for path in files(run.run_dir, ITS_OWN):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert not files(run.run_dir / "stalls", ITS_OWN)


def files(folder: Path, names: set[str] | None = None) -> list[Path]:
    """Those of these names, or all others."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if (path.name in ITS_OWN) == (names is not None)]
