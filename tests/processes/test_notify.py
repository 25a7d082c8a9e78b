"""Who is told what happens at night: over a real socket, from a real run."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import run_wtrain, sentence, wait_until
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import said
from watchdog_train.supervisor.children import ChildTable, Helper
from watchdog_train.supervisor.outbox import Channel, Outbox
from watchdog_train.system import current

SECRET = "s3cr3t-t0ken-of-the-hook"


class Sink:
    """A service on 127.0.0.1 that keeps what it is told."""

    def __init__(self, code: int = 200, *, answers: bool = True, port: int = 0) -> None:
        self.messages: list[dict[str, Any]] = []
        self.logins: list[str | None] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.messages.append(json.loads(body))
                outer.logins.append(self.headers["Authorization"])
                if not answers:
                    outer.released.wait(120)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", port), Handler)

    @property
    def plain_url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{SECRET}?token={SECRET}"

    @property
    def url(self) -> str:
        return self.plain_url.replace("//", f"//mia:{SECRET}@")


@contextmanager
def serving(sink: Sink) -> Iterator[Sink]:
    thread = threading.Thread(target=sink.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        sink.released.set()
        sink.server.shutdown()
        sink.server.server_close()
        thread.join(10)


def test_a_run_tells_its_end_and_no_secret(tmp_path: Path) -> None:
    """The crash, the verdict and the way on arrive; the URL is in no file that anybody shows."""
    with serving(Sink()) as sink:
        args = ("run", "--name", "bed", "--on-crash", "stop", "--notify", sink.plain_url)
        run = run_wtrain(*args, "--", "sh", "-c", "exit 3", cwd=tmp_path).check(3)
    message = sink.messages[-1]  # a fast machine tells the crash in the same one
    assert [one for told in sink.messages for one in told["topics"]] == ["crashed", "gave-up"]
    assert "crashed" in sink.messages[0]["message"]
    assert message["title"] == "wtrain bed: gave up or failed"
    assert " failed: " in message["message"]
    assert "report.html" in message["message"]
    assert "to continue: wtrain restart bed-" in message["message"]
    told = [(said["channel"], said["sent"], said["why"]) for said in run.of_type("notified")]
    assert told == [("http #1", True, None)] * len(sink.messages)
    assert SECRET not in run.stdout + run.stderr
    directory = next((tmp_path / "wtrain-runs").glob("bed-*"))
    told = [path for path in directory.rglob("*") if path.is_file()]
    assert not [path for path in told if SECRET.encode() in path.read_bytes()]
    for command in (["status", "--json"], ["report"], ["report", "--json"]):
        assert SECRET not in run_wtrain(*command, cwd=tmp_path).stdout
    assert run.events[-1]["type"] == "notified", run.describe()
    followed = run_wtrain("logs", "-f", cwd=tmp_path).check(0)
    assert "adopt" not in followed.stderr, "a word to others after the end is no death of ours"


def test_a_restart_has_its_notifications_from_the_environment(tmp_path: Path) -> None:
    """No file of the run keeps the URL; without it the restart says so."""
    with serving(Sink()) as sink:
        environment = {"WTRAIN_NOTIFY": sink.plain_url}
        run = run_wtrain(
            "run", "--name", "bed", "--", "sh", "-c", "exit 3", cwd=tmp_path, env=environment
        ).check(3)
        told = [path for path in run.run_dir.rglob("*") if path.is_file()]
        assert not [path for path in told if SECRET.encode() in path.read_bytes()]
        shown = run_wtrain("config", "show", "--json", cwd=tmp_path, env=environment)
        assert shown.json()["settings"]["notify.urls"] == ["http://[removed]"]
        before = len(sink.messages)
        run_wtrain("restart", run.run_dir.name, cwd=tmp_path, env=environment).check(3)
        assert len(sink.messages) > before
        before = len(sink.messages)
        without = run_wtrain("restart", run.run_dir.name, cwd=tmp_path).check(3)
        assert "no notifications: a run does not keep their URLs" in without.stderr
        assert len(sink.messages) == before


def test_what_happens_within_a_minute_comes_in_one_message(tmp_path: Path) -> None:
    """The first at once, the next ones together when their time has come, the end at once."""
    now, staging, state = [100.0], tmp_path / "staging", State(name="sft", run_id="sft-1")
    children = ChildTable(current())

    def stall(number: int) -> e.StallDeclared:
        return e.StallDeclared(
            stall_id=f"{number:04d}", basis="quiet", phase="train", ranks=(0,), age_s=9.0,
            why=said(f"silence number {number}"),
        )  # fmt: skip

    with serving(Sink()) as sink:
        helper = Helper(children, "notify-1", staging)
        notifier = Channel("http #1", sink.url, helper, every_s=60.0, clock=lambda: now[0])

        def told() -> list[e.Notified]:
            children.poll()
            return list(notifier.poll(state))

        notifier.follow(stall(1), state)
        assert wait_until(told, 30, "an answer")[0].sent
        for number in (2, 3):
            notifier.follow(stall(number), state)
        assert told() == []
        assert len(sink.messages) == 1
        now[0] += 61.0
        assert wait_until(told, 30, "an answer")[0].sent
        assert sink.messages[1]["message"].count("silence number") == 2
        end = e.RunFinished(outcome="gave_up", exit_code=76, warning=None, why=said("no progress"))
        notifier.follow(end, state)
        assert [one.topics for one in Outbox([notifier], children).finish(lambda: state)] == [
            ("gave-up",)
        ]
    assert len(sink.messages) == 3
    assert list(staging.iterdir()) == []


def test_what_could_not_be_sent_is_sent_when_the_service_is_back(tmp_path: Path) -> None:
    """To the channel that was away only: the other one has been told."""
    now, staging, state = [100.0], tmp_path / "staging", State(name="sft", run_id="sft-1")
    children = ChildTable(current())

    def stall(number: int) -> e.StallRecovered:
        return e.StallRecovered(stall_id=f"{number:04d}", why=said(""))

    away = Sink()
    away.server.server_close()
    with serving(Sink()) as good:
        channels = [
            Channel(f"http #{number}", url, helper, every_s=10.0, clock=lambda: now[0])
            for number, url in ((1, good.url), (2, away.url))
            for helper in (Helper(children, f"notify-{number}", staging),)
        ]

        def told() -> list[tuple[str, bool]]:
            children.poll()
            return [(one.channel, one.sent) for each in channels for one in each.poll(state)]

        for each in channels:
            each.follow(stall(1), state)
        first: list[tuple[str, bool]] = []
        wait_until(lambda: first.extend(told()) or len(first) == 2, 30, "both answers")
        assert sorted(first) == [("http #1", True), ("http #2", False)]
        now[0] += 61.0
        back = Sink(port=away.server.server_port)
        with serving(back):
            assert wait_until(told, 30, "an answer") == [("http #2", True)]
    assert [len(each.messages) for each in (good, back)] == [1, 1]
    assert "stall 0001 is over" in back.messages[0]["message"]


def test_what_cannot_be_sent_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """A scheme without its library, and what is no URL: exit code 78, and nothing was started."""
    without = "notify-needs-apprise" if find_spec("apprise") is None else "notify-url"
    for url, word in ((f"no-url-{SECRET}", "notify-url"), (f"nosuch://{SECRET}", without)):
        refused = run_wtrain("run", "--notify", url, "--", "touch", "ran", cwd=tmp_path).check(78)
        assert word in refused.stderr
        assert SECRET not in refused.stderr
    assert not (tmp_path / "ran").exists()


def test_notify_test_says_what_was_reached(tmp_path: Path) -> None:
    """Each channel by its scheme and number, and exit code 75 where one failed."""
    with serving(Sink()) as good, serving(Sink(500)) as bad:
        both = ("--notify", good.url, "--notify", bad.url)
        found = run_wtrain("notify-test", *both, cwd=tmp_path).check(75)
        assert found.stdout == "http #1: sent\nhttp #2: NOT sent: the service answered 500\n"
        run_wtrain("notify-test", "--notify", good.url, cwd=tmp_path).check(0)
    assert SECRET not in found.stdout + found.stderr
    assert len(good.messages) == 2
    login = base64.b64encode(f"mia:{SECRET}".encode()).decode()
    assert good.logins == [f"Basic {login}"] * 2
    gone = run_wtrain("notify-test", "--notify", good.url, cwd=tmp_path).check(75)
    assert "NOT sent" in gone.stdout
    nobody = run_wtrain("notify-test", cwd=tmp_path).check(78)
    assert "notify-nobody" in nobody.stderr


@pytest.mark.slow
def test_a_service_that_never_answers_costs_the_end_a_bound(tmp_path: Path) -> None:
    """The exit code is the training's, and the failure is in the log."""
    with serving(Sink(answers=False)) as sink:
        args = ("run", "--on-crash", "stop", "--notify", sink.plain_url)
        run = run_wtrain(*args, "--", "sh", "-c", "exit 3", cwd=tmp_path).check(3)
    told = run.of_type("notified")  # a fast machine tells the crash and the end in one message
    assert {said["sent"] for said in told} == {False}
    assert all(" within 1" in sentence(said["why"]) for said in told)
    assert told[-1]["mono"] - run.only("run_finished")["mono"] < 60
    assert "no message was sent to http #1" in run.stderr
