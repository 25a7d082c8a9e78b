"""A training of two nodes of two ranks as a job of the test's own Slurm."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.support import (
    EXAMPLES,
    PROGRAMS,
    Event,
    bin_path,
    outline,
    read_log,
    run_command,
    run_directories,
    scenario_environment,
    wait_until,
    write_fast_config,
)

SETTINGS = "job: {gather_s: 60, lost_s: 30}\n"
AGENTS = "wtrain-runs/.agents"
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@dataclass
class Job:
    """One job; Slurm keeps its number when it is requeued."""

    number: int
    cwd: Path
    env: dict[str, str]

    def fields(self) -> dict[str, str]:
        """What Slurm says of it."""
        said = _slurm("scontrol", "show", "job", "--oneliner", str(self.number), env=self.env)
        return dict(re.findall(r"(?:^| )([A-Za-z:/]+)=(\S*)", said))

    @property
    def state(self) -> str:
        return self.fields().get("JobState", "")

    @property
    def restarts(self) -> int:
        return int(self.fields().get("Restarts", "0"))

    @property
    def output(self) -> str:
        paths = sorted(self.cwd.glob(f"*-{self.number}.out"))
        return "\n".join(path.read_text("utf-8", "replace") for path in paths)

    @property
    def name(self) -> str:
        return f"job-{self.number}"

    def all_logs(self) -> list[list[Event]]:
        """The event log of the run, and of each agent, oldest first."""
        paths = (*run_directories(self.cwd), *run_directories(self.cwd, AGENTS))
        return [log for log in map(read_log, paths) if log]

    def log(self, node: int) -> list[Event]:
        """The job's log, or that of the newest agent of a node; nothing before there is one."""
        name = self.name + (f"-node{node}" if node else "")
        return next((log for log in self.all_logs()[::-1] if log[0]["name"] == name), [])

    def described(self) -> str:
        parts = [f"--- {log[0]['name']}\n{outline(log)}" for log in self.all_logs()]
        return "\n".join([str(self.fields()), *parts, f"--- output\n{self.output[-6000:]}"])

    def wait_for_end(self, timeout_s: float) -> None:
        """Until Slurm says that it is over; with everything that is known when it is late."""
        try:
            wait_until(lambda: self.state in OVER, timeout_s, "the job is over", poll_s=0.5)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.described()}") from None

    def cancel(self) -> None:
        """End it, and wait for Slurm to have ended all of it."""
        _slurm("scancel", str(self.number), env=self.env)
        gone = ("COMPLETING", "RUNNING", "PENDING")
        wait_until(lambda: self.state not in gone, 60, "the job has ended", poll_s=0.2)


def submit(
    cwd: Path,
    *command: str,
    flags: tuple[str, ...] = (),
    asked: tuple[str, ...] = (),
    lines: dict[str, str] | None = None,
    nodes: int = 2,
) -> Job:
    """examples/slurm.sbatch with this command, handed to sbatch with these options of sbatch.

    `lines`: the other variables at its top.
    """
    config = write_fast_config(cwd, SETTINGS)
    # torchrun itself takes half a minute to end when its ranks on several nodes have ended.
    config.write_text(config.read_text().replace("ask_s: 10", "ask_s: 120"))
    text = (EXAMPLES / "slurm.sbatch").read_text()
    changed = {
        "command": f"({shlex.join(command)})",
        "flags": f"({shlex.join(('--config', str(config), *flags))})",
        **(lines or {}),
    }
    for name, value in changed.items():
        (line,) = re.findall(rf"(?m)^{name}=.*$", text)
        text = text.replace(line, f"{name}={value}", 1)
    batch = cwd / "job.sh"
    batch.write_text(text.replace("#SBATCH --gpus-per-node=8\n", ""))
    environment = {**os.environ, **scenario_environment(cwd)}
    environment["PATH"] = os.pathsep.join(
        (str(cwd / ".limits"), str(bin_path("wtrain").parent), environment["PATH"])
    )
    options = (f"--nodes={nodes}", "--job-name=job", *asked)
    number = _slurm("sbatch", "--parsable", *options, str(batch), env=environment, cwd=cwd)
    return Job(int(number), cwd, environment)


def set_node(name: str, state: str) -> None:
    """drain: no job gets it any more; resume: jobs get it again from now on."""
    env = {**os.environ}
    _slurm("scontrol", "update", f"nodename={name}", f"state={state}", "reason=test", env=env)

    def is_idle() -> bool:
        said = _slurm("scontrol", "show", "node", "--oneliner", name, env=env)
        return "State=IDLE " in said

    if state == "resume":
        wait_until(is_idle, 60, f"{name} is idle", poll_s=0.2)


def ranks_of_nodes(*program: str) -> tuple[str, ...]:
    """torchrun with two ranks of an unmodified script; nothing says where it meets."""
    torchrun = (str(bin_path("torchrun")), "--nproc-per-node=2")
    return (*torchrun, str(PROGRAMS / "node_ranks.py"), *program)


def _slurm(*words: str, env: dict[str, str], cwd: Path | None = None) -> str:
    done = run_command(words, env=env, cwd=cwd)
    return done.stdout.strip()
