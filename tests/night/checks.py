"""What must be true in the morning. Each check says what it saw where it fails."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from pathlib import Path

from tests.night.play import Night
from tests.night.stage import wtrain, wtrain_json
from tests.support import Event, of_type

HANGS = (
    ("0001", {"dataloader-worker-stuck"}, 1),
    ("0003", {"collective-mismatch"}, None),
    ("0004", {"rank-left-early"}, 0),
)
"""Stall, families that are right for what was planted, and the rank that may be blamed.

0002 is the bundle of the crash. Of two ranks in different operations neither is more guilty.
"""
CRASH = "0002"
DISK_CRASH = "0005"


class Checks:
    """All of them, in the order of the night."""

    def __init__(self, night: Night, problem: str | None) -> None:
        self.night = night
        self.events = night.events if night.run_dir.is_dir() else []
        self.failed: list[str] = [f"the play broke off: {problem}"] if problem else []
        self.passed: list[str] = []
        self.left_out: list[str] = []
        if not night.disk.mounted:
            self.left_out.append(f"the full disk: nothing can be mounted: {night.disk.why_not}")

    def all(self) -> None:
        """Make every check; one that cannot be made has failed."""
        for check in (
            self.training_is_complete,
            self.hangs_are_found,
            self.crashes_are_known,
            self.evidence_came_first,
            self.resumed_each_time,
            self.terminal_was_no_loss,
            self.supervisor_was_replaced,
            self.disk_was_waited_for,
            self.messages_came_in_order,
            self.text_report_tells_it,
            self.page_tells_it,
            self.nothing_is_left,
        ):
            try:
                problems = list(check())
            except Exception as error:  # what is missing is a failure, too
                problems = [f"cannot be checked: {error!r}"]
            words = (check.__doc__ or check.__name__).rstrip(".")
            if problems:
                self.failed += [f"{words}: {one}" for one in problems]
            else:
                self.passed.append(words)

    def told(self) -> str:
        """A line for each."""
        lines = [f"ok: {one}" for one in self.passed]
        lines += [f"left out: {one}" for one in self.left_out]
        lines += [f"FAILED: {one}" for one in self.failed]
        return "\n".join(lines)

    # -- the run --------------------------------------------------------------------------------
    def training_is_complete(self) -> Iterable[str]:
        """The training is complete, and the exit code is 0."""
        last, steps = of_type(self.events, "run_finished"), self.night.length.steps
        if self.night.exit_code != 0 or not last or last[-1]["exit_code"] != 0:
            yield f"exit code {self.night.exit_code}, log {last}"
        written = "".join(
            path.read_text("utf-8", "replace")
            for path in sorted((self.night.run_dir / "attempts").glob("*/*.log"))
        )
        if len(re.findall(rf"^finished step={steps} ", written, re.MULTILINE)) != 1:
            yield f"no line 'finished step={steps}' in what it wrote"
        if not (self.night.work / "output/final/model.safetensors").is_file():
            yield "there is no final model"
        newest = self.night.work / f"output/checkpoint-{steps}/trainer_state.json"
        if json.loads(newest.read_bytes())["global_step"] != steps:
            yield f"{newest} is of another step"

    def hangs_are_found(self) -> Iterable[str]:
        """Three hangs were declared, in their order, with causes that fit what was planted."""
        found = [event["stall_id"] for event in of_type(self.events, "stall_declared")]
        if found != [stall for stall, _, _ in HANGS]:
            yield f"declared: {found}"
        for stall, families, rank in HANGS:
            found = self._explanation(stall)
            family = (found["because"] or {}).get("family")
            if family is not None and family not in families:
                yield f"{stall} is called {family}: {found}"
            root = found["root"]
            if root is not None and root["who"]["rank"] != rank:
                yield f"{stall} blames rank {root['who']['rank']}, it was {rank}"

    def crashes_are_known(self) -> Iterable[str]:
        """What ended the killed rank, and what the full disk did, are told as they were."""
        root = self._explanation(CRASH)["root"]
        if root is None or (root["who"]["rank"], root["doing"].get("signal")) != (1, 9):
            yield f"the killed rank: {root}"
        if self.night.disk.mounted:
            found = self._explanation(DISK_CRASH)
            if "No space left on device" not in json.dumps(found):
                yield f"the full disk: {found}"
        ended = [(e["code"], e["signal"]) for e in of_type(self.events, "attempt_exited")]
        if ended[-1] != (0, None):
            yield f"the attempts ended with {ended}"

    def evidence_came_first(self) -> Iterable[str]:
        """Every process was captured, on disk, before the first signal of each hang."""
        for stall, _, _ in HANGS:
            (collected,) = self._of_stall("evidence_collected", stall)
            first = next(
                e for e in of_type(self.events, "signalling")
                if e["attempt"] == collected["attempt"] and e["targets"]
            )  # fmt: skip
            if first["seq"] < collected["seq"]:
                yield f"{stall}: signalled at {first['seq']}, evidence at {collected['seq']}"
            if collected["missing"]:
                yield f"{stall}: no stack of {collected['missing']}"

    def resumed_each_time(self) -> Iterable[str]:
        """Each attempt went on from a newer checkpoint, and the resume was verified."""
        launched = of_type(self.events, "attempt_launching")
        wanted = len(HANGS) + 1 + self.night.disk.mounted
        if len(launched) != 1 + wanted:
            yield f"{len(launched)} attempts, not {1 + wanted}"
        steps = [(e["plan"]["checkpoint"] or {}).get("step", 0) for e in launched]
        if steps != sorted(set(steps)):
            yield f"they began at {steps}"
        verified = {e["attempt"] for e in of_type(self.events, "resume_verified") if e["ok"]}
        if verified != {e["attempt"] for e in launched[1:]}:
            yield f"verified: {verified}"
        lost = self._lost_steps()
        most = self.night.length.save_steps
        if max(lost) > most:
            yield f"done again: {lost} steps, at most {most} lie between two saves"

    def terminal_was_no_loss(self) -> Iterable[str]:
        """The run went on when its terminal was closed."""
        after = [e for e in self.events if e["t"] > self.night.hung_up_at and e["attempt"] == 1]
        if not of_type(after, "progress"):
            yield "no step was seen in the first attempt after that"

    def supervisor_was_replaced(self) -> Iterable[str]:
        """Somebody adopted it; training lived on."""
        adopted = of_type(self.events, "adopted")
        if len(adopted) != 1:
            yield f"adopted {len(adopted)} times"
        if {e["attempt"] for e in adopted} & {
            e["attempt"] for e in of_type(self.events, "attempt_launched")
            if adopted[0]["seq"] > e["seq"] > adopted[0]["seq"] - 3
        }:  # fmt: skip
            yield "the training was started anew"

    def disk_was_waited_for(self) -> Iterable[str]:
        """Nothing was started while the disk was full, and what was half saved was passed over."""
        if self.night.filled_at is None or self.night.freed_at is None:
            return
        launched = [
            e for e in of_type(self.events, "attempt_launching")
            if self.night.filled_at < e["t"] < self.night.freed_at
        ]  # fmt: skip
        if launched:
            yield f"started: {launched}"
        if not [e for e in of_type(self.events, "noticed") if e["kind"] == "room"]:
            yield "that it waits was not noted"
        if [e for e in self.events if e["seq"] != self.events.index(e) + 1]:
            yield "the log has a gap"

    # -- what a person hears and reads ------------------------------------------------------------
    def messages_came_in_order(self) -> Iterable[str]:
        """The messages say what happened in its order, on both channels, and nothing else."""
        lines = self.night.sink.lines("/plain")
        yield from _in_order(self._story(), lines)
        stalled = [line for line in lines if " stalled at " in line]
        if len(stalled) != len(HANGS):
            yield f"{len(stalled)} stalls were told: {stalled}"
        if not re.search(r"^[\d:]{5} success: .* \d restarts", "\n".join(lines), re.MULTILINE):
            yield f"the end was not told: {lines[-3:]}"
        if self.night.sink.messages[-1].title != "wtrain night: finished":
            yield f"the last title: {self.night.sink.messages[-1].title}"
        if self.night.sink.strange:
            yield f"strange requests: {self.night.sink.strange[:3]}"
        failed = [e for e in of_type(self.events, "notified") if not e["sent"]]
        if failed:
            yield f"not sent: {failed[:2]}"
        if self.night.apprise and self.night.sink.lines("/apprise") != lines:
            yield f"apprise told otherwise: {self.night.sink.lines('/apprise')}"

    def _story(self) -> list[str]:
        told = [
            rf"stalled at step {self._step(2)}",
            r"rank 1's worker \d .* waiting for a lock inside the process .*__getitem__",
            r"restarted .* as attempt 2, with num-workers-0",
            r"running again at step",
            r"crashed: rank 1 .*SIGKILL",
            r"restarted .* as attempt 3",
            r"running again at step",
            r"stalled at step",
            r"collective-mismatch \(proven\)",
            r"restarted .* as attempt 4",
            r"running again at step",
            r"adopted: pid",
            r"stalled at step",
            r"restarted .* as attempt 5",
            r"running again at step",
        ]
        if self.night.disk.mounted:
            told += [
                r"crashed: .*No space left on device",
                r"waits for room",
                r"restarted .* as attempt 6",
                r"running again at step",
            ]
        return [*told, r"success: ", r"^report: .*/report\.html$"]

    def _step(self, epochs: float) -> str:
        return f"{self.night.length.at(epochs):,}"

    def text_report_tells_it(self) -> Iterable[str]:
        """`wtrain report` tells the attempts and stalls in their order."""
        text = wtrain("report", cwd=self.night.work, env=self.night.env).stdout
        yield from self._report_in_order(text)

    def page_tells_it(self) -> Iterable[str]:
        """The page tells the same, and stands where the last message says."""
        page = (self.night.run_dir / "report.html").read_text("utf-8")
        body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", "\n", body))
        yield from self._report_in_order(text)
        said = [line for line in self.night.sink.lines("/plain") if line.startswith("report: ")]
        if said and Path(said[-1].removeprefix("report: ")).resolve() != (
            self.night.run_dir / "report.html"
        ):
            yield f"the message says {said[-1]}"

    def _report_in_order(self, text: str) -> Iterable[str]:
        restarts = len(of_type(self.events, "attempt_launching")) - 1
        why = rf"{len(HANGS)} stalls, {restarts - len(HANGS)} crash"
        told = [rf"success: .* {restarts} restarts, {why}", r"Attempts"]
        told += [rf"Attempt {number}:" for number in range(2, restarts + 2)]
        told += [r"Goodput \d+ %", r"steps that were kept"]
        explained = of_type(self.events, "stall_explained")
        told += [rf"(Stall|Crash) {event['stall_id']}" for event in explained]
        yield from _in_order(told, text.splitlines())

    # -- afterwards -------------------------------------------------------------------------------
    def nothing_is_left(self) -> Iterable[str]:
        """No process, no shared memory, no slot, no temporary file and no live run is left."""
        if self.night.left_processes:
            yield f"processes: {self.night.left_processes}"
        if self.night.left_shared_memory:
            yield f"shared memory: {sorted(self.night.left_shared_memory)}"
        for name in ("runtime", "tmp"):
            left = sorted((self.night.folder / "home" / name).rglob("*wtrain*"))
            left = [path for path in left if path.is_file() or any(path.iterdir())]
            if left:
                yield f"{name}: {[str(path) for path in left[:5]]}"
        torn = [
            path for path in self.night.work.rglob("*") if re.search(r"\.tmp|\.part", path.name)
        ]
        if torn:
            yield f"half-written: {torn[:5]}"
        live = [
            run for run in wtrain_json("ps", cwd=self.night.work, env=self.night.env)["runs"]
            if run["state"] != "finished"
        ]  # fmt: skip
        if live:
            yield f"wtrain ps shows {live}"

    # -- looking ----------------------------------------------------------------------------------
    def _of_stall(self, name: str, stall: str) -> list[Event]:
        return [event for event in of_type(self.events, name) if event["stall_id"] == stall]

    def _explanation(self, stall: str) -> Event:
        (event,) = self._of_stall("stall_explained", stall)
        found = event["explanation"]
        assert isinstance(found, dict)
        return found

    def _lost_steps(self) -> list[int]:
        """Of each attempt that ended early: steps after the checkpoint that the next began with."""
        ended = of_type(self.events, "attempt_exited")[:-1]
        began = of_type(self.events, "attempt_launching")[1:]
        return [
            (e["step"] or 0) - (b["plan"]["checkpoint"] or {}).get("step", 0)
            for e, b in zip(ended, began, strict=True)
        ]


def _in_order(patterns: list[str], lines: list[str]) -> Iterable[str]:
    """What is missing of a story; each line is looked for behind the one before it."""
    at = 0
    for pattern in patterns:
        found = next((i for i in range(at, len(lines)) if re.search(pattern, lines[i])), None)
        if found is None:
            yield f"no line like '{pattern}' after line {at} of {len(lines)}"
            return
        at = found + 1
