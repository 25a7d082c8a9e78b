"""`wtrain demo`: a real hang of an ordinary PyTorch script, caught and finished on the screen.

Must not imitate anything: it copies the script and starts the same `wtrain run` that a user types.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from watchdog_train.cli.screen import echo
from watchdog_train.errors import WtrainError

SCRIPT = Path(__file__).parent.parent / "demo" / "train.py"
OPTIONS = ("--resume-arg", "--resume {checkpoint}")
LIMIT_S = 600.0
"""The demo takes about a minute; past this something is wrong with the machine."""


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to play; must not exist.  [default: ./wtrain-demo, or the next free name]",
)
def demo(directory: Path | None) -> None:
    """Train a small network with a real bug in its data loading, and bring it home.

    The script is an ordinary one that knows nothing of wtrain. In its third epoch the workers of
    its DataLoader deadlock. Nothing is downloaded; it takes about a minute.
    """
    if importlib.util.find_spec("torch") is None:
        raise WtrainError(
            "the demo trains with PyTorch, and this Python has none",
            context=sys.executable,
            hint="pip install torch",
            reference="demo-needs-torch",
        )
    place = _make(directory)
    shutil.copyfile(SCRIPT, place / "train.py")
    command = ["run", *OPTIONS, "--", sys.executable, "train.py"]
    shown = shlex.join(["wtrain", *command[:-2], "python", "train.py"])
    _say(f"cd {shlex.quote(str(place))}")
    _say("train.py is an ordinary PyTorch script; its workers will deadlock in the third epoch.")
    _say(f"$ {shown}")
    # Ctrl-C reaches the run too, which is in the terminal's process group.
    process = subprocess.Popen([sys.executable, "-m", "watchdog_train", *command], cwd=place)
    code = _wait(process)
    if code == 0:
        _say(f"that was it. Look at what is left: cd {shlex.quote(str(place))}; wtrain show")
    else:
        _say(f"the demo failed (exit code {code}): cd {place}; wtrain status")
    sys.exit(code)


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait(LIMIT_S)
        except KeyboardInterrupt:  # noqa: PERF203 - each Ctrl-C begins the wait anew
            _say("Ctrl-C: the run saves and stops now; once more kills")
        except subprocess.TimeoutExpired:
            _say(f"still not done after {LIMIT_S:g} s: asking the run to stop")
            process.terminate()


def _make(directory: Path | None) -> Path:
    if directory is None:
        names = ["wtrain-demo", *(f"wtrain-demo-{number}" for number in range(2, 1000))]
        directory = next(path for path in map(Path, names) if not path.exists())
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise WtrainError(
            f"cannot make this directory: {error.strerror}",
            context=str(directory),
            hint="name another one with --dir",
            reference="demo-directory",
        ) from error
    return directory


def _say(text: str) -> None:
    echo(f"demo: {text}", err=True)
