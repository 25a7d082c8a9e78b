"""The manifests of examples/kubernetes say what wtrain does: codes, options, times, ranks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml

from tests.support import REPOSITORY, run_command
from watchdog_train.cli import group, probe
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import said
from watchdog_train.core.notices.vitals import BLIND_S
from watchdog_train.core.policy import Job, Output, Policy, Stopping
from watchdog_train.core.recovery.kill import KILL_S
from watchdog_train.core.starting import command_line
from watchdog_train.core.starting.launchers import describe
from watchdog_train.core.starting.nodes import find_node
from watchdog_train.errors import EXIT_GAVE_UP, EXIT_REFUSED
from watchdog_train.report.summary import CAP_BYTES, verdict_text
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import cut_bytes
from watchdog_train.store.log_reading import read_events
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.hands.link.peers import VARIABLE
from watchdog_train.supervisor.job_task import is_led
from watchdog_train.supervisor.outbox import Outbox
from watchdog_train.supervisor.status_files import IN_KUBERNETES, KUBELETS, TextFile, files_wanted
from watchdog_train.system import current

FOLDER = REPOSITORY / "examples" / "kubernetes"
# For what the scripts call: it says what it was called with.
STUB = """#!/bin/sh
if [ "$1" = checkpoints ]; then echo "$ANSWER"; exit; fi
for word; do printf '%s\\n' "$word"; done
"""


def job_of(name: str) -> dict[str, Any]:
    """The specification of the Job, also that in a JobSet."""
    document = yaml.safe_load((FOLDER / name).read_text())
    if document["kind"] == "Job":
        return document["spec"]
    (replicated,) = document["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1  # JOB_COMPLETION_INDEX counts within one Job
    return replicated["template"]["spec"]


def container_of(name: str) -> dict[str, Any]:
    (container,) = job_of(name)["template"]["spec"]["containers"]
    return container


def parsed(words: list[str]) -> dict[str, Any]:
    """Keyword arguments of a command of wtrain, refused as wtrain would refuse them."""
    whole = group.build_group()
    assert isinstance(whole, click.Group)
    command = whole.get_command(click.Context(whole), words[1])
    return command.make_context(words[1], words[2:]).params


def called(name: str, tmp_path: Path, answer: str) -> list[str]:
    """What the script of a container calls in the end, with `answer` about checkpoints."""
    shell = shutil.which("sh")
    if shell is None:
        pytest.skip("no sh")
    (tmp_path / "wtrain").write_text(STUB)
    (tmp_path / "wtrain").chmod(0o755)
    container = container_of(name)
    assert container["command"] == ["sh", "-c"]
    script = container["args"][0].replace("/shared/", f"{tmp_path}/shared/")
    path = f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"
    done = run_command(
        [shell, "-euc", script],
        env={"PATH": path, "ANSWER": json.dumps({"newest_whole": answer or None})},
    )
    assert not done.stderr
    assert (tmp_path / "shared" / "sft" / "checkpoints").is_dir()
    return ["wtrain", *done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_codes_and_times(name: str) -> None:
    """Another try after 75 and 77 alone; no limit is shorter than what it waits for."""
    job, container = job_of(name), container_of(name)
    (refused, *_) = job["podFailurePolicy"]["rules"]
    assert refused["action"] == "FailJob"
    assert refused["onExitCodes"]["values"] == [EXIT_GAVE_UP, EXIT_REFUSED]
    assert refused["onExitCodes"]["containerName"] == container["name"]
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert container.get("terminationMessagePath", str(KUBELETS)) == str(KUBELETS)
    stopping = Stopping()
    needs_s = stopping.grace_s + 2 * stopping.hang_grace_s + KILL_S
    needs_s += stopping.ask_s
    assert pod["terminationGracePeriodSeconds"] >= needs_s + 30
    for which in ("startupProbe", "livenessProbe", "readinessProbe"):
        if which not in container:
            continue
        asked = container[which]
        wanted = parsed(asked["exec"]["command"])
        assert which.startswith(wanted["probe"])
        assert asked["timeoutSeconds"] > 2 * probe.ANSWER_S
    living = container["livenessProbe"]
    assert living["periodSeconds"] * living["failureThreshold"] >= BLIND_S


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_what_the_container_starts(name: str, tmp_path: Path) -> None:
    """Options that wtrain has; with a whole checkpoint from an earlier pod the script resumes."""
    fresh = called(name, tmp_path, "")
    resumed = called(name, tmp_path, "/shared/step 10")
    assert resumed == [*fresh, "--resume", "/shared/step 10"]
    flags = parsed(fresh)
    assert flags["resume_arg"] == "--resume {checkpoint}"
    found = command_line.find(flags["command"])
    assert found is not None
    launcher = describe(found, {})
    if name == "job.yaml":
        return
    job, container = job_of(name), container_of(name)
    assert job["completions"] == job["parallelism"] == launcher.nodes
    given = {one["name"]: one.get("value", "from-the-pod") for one in container["env"]}
    # What the Job controller and the kubelet add; the host name is JOB-INDEX.
    pod = given | {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "sft-node-0-3"}
    settings = Job(nodes=flags["nodes"], coordination=flags["coordination"])
    node = find_node(settings, pod, launcher)
    assert (node.task, node.tasks, node.source) == (3, 4, "kubernetes")
    others = find_node(settings, {**pod, "JOB_COMPLETION_INDEX": "0"}, launcher)
    assert others.job == node.job
    again = find_node(settings, {**pod, "JOBSET_RESTART_ATTEMPT": "1"}, launcher)
    assert again.job != node.job
    assert is_led(node, settings)
    first = f"{pod['JOBSET_NAME']}-node-0-0"  # by the kubelet, where the JobSet is called sft
    assert f"{first.replace('from-the-pod', 'sft')}.sft:" in flags["coordination"]
    (key,) = [one for one in container["env"] if one["name"] == VARIABLE]
    assert key["valueFrom"]["secretKeyRef"]["key"] == "key"


GOLDEN = Path(__file__).parent.parent / "golden"
POD = {IN_KUBERNETES: "10.0.0.1"}


def asking(log: str | None) -> Policy:
    return Policy(output=Output(termination_log=log))


def noticed(log: TextFile, state: State) -> list[e.Noticed]:
    """What the end of a run says about its file."""
    return list(Outbox([log], ChildTable(current())).finish(lambda: state))


def recorded(name: str) -> State:
    return replay(read_events(GOLDEN / f"{name}.events.jsonl").events)


@pytest.mark.parametrize(
    ("name", "begins", "holds"),
    [
        ("gave_up", "wtrain: gave up: ", ("stall 000", "evidence: /")),
        ("healthy", "wtrain: success: ", ()),
        ("stopped", "wtrain: stopped: ", ()),
    ],
)
def test_the_verdict_of_recorded_runs(name: str, begins: str, holds: tuple[str, ...]) -> None:
    """The outcome first; what was caught and where the evidence is, unless all ended well."""
    text = verdict_text(recorded(name))
    assert text.startswith(begins)
    assert text.endswith("\n")
    assert text.count("\n") == 1 + len(holds)
    for words in holds:
        assert words in text


def test_it_is_known_before_the_end() -> None:
    """Of a run that lives: where it is, and what was caught."""
    events = read_events(GOLDEN / "gave_up.events.jsonl").events
    upto = next(n for n, event in enumerate(events) if isinstance(event, e.EvidenceCollected))
    text = verdict_text(replay(events[: upto + 1]))
    first, second = text.splitlines()[:2]
    assert first == "wtrain: collecting, attempt 1; step 612 of 3,000, 1 stall, 1 min 26 s"
    assert second.startswith("stall 0001 of attempt 1: ")


def test_it_is_never_too_long() -> None:
    """Whatever a training has written; in bytes, not characters, and no character is cut in two."""
    state = recorded("gave_up")
    long = msgspec.structs.replace(state, why=said("ä\x1b[31m\n" * 9000), cwd="ü" * 5000)
    stalls = (
        *state.stalls[:-1],
        msgspec.structs.replace(state.stalls[-1], verdict=said("ö" * 9000)),
    )
    data = verdict_text(msgspec.structs.replace(long, stalls=stalls)).encode()
    assert len(data) <= CAP_BYTES
    assert b"\x1b" not in data
    assert [cut_bytes("äöü", size) for size in (6, 5, 4)] == ["äöü", "ä…", "…"]


def test_it_is_written_in_place(tmp_path: Path) -> None:
    """The kubelet has mounted that file: another one under its name would not be seen."""
    kubelets = tmp_path / "termination-log"
    kubelets.write_text("x" * 9000)
    before = kubelets.stat().st_ino
    (log,) = files_wanted(asking("auto"), POD, cwd=str(tmp_path), auto=kubelets)
    state = recorded("gave_up")
    log.follow(e.SupervisorLeft(why=said("a bug")), State())
    assert noticed(log, state) == []
    assert kubelets.read_text() == verdict_text(state)
    assert kubelets.stat().st_ino == before


def test_nobody_asks_for_it(tmp_path: Path) -> None:
    """Outside of Kubernetes, where it has no such file, and where the setting is null."""
    file = tmp_path / "termination-log"
    assert not [*files_wanted(asking("auto"), POD, cwd=str(tmp_path), auto=file)]
    file.write_text("")
    for wanted, environ in (("auto", {}), (None, POD)):
        assert not [*files_wanted(asking(wanted), environ, cwd=str(tmp_path), auto=file)]


@pytest.mark.parametrize("what", ["no folder", "a folder", "a pipe"])
def test_what_cannot_be_written_is_said(tmp_path: Path, what: str) -> None:
    """A failure is recorded; it costs the run nothing."""
    path = tmp_path / "there" / "log"
    if what != "no folder":
        path.parent.mkdir()
    if what == "a folder":
        path.mkdir()
    if what == "a pipe":
        os.mkfifo(path)
    (log,) = files_wanted(asking("there/log"), {}, cwd=str(tmp_path))
    (found,) = noticed(log, recorded("gave_up"))
    assert found.kind == "termination"
    assert why_text(found.why).startswith(f"the termination message cannot be written to {path}: ")
