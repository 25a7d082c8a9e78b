"""What waits for a server: the hub's requests and downloads, wandb.init. The servers are ours."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.client_runs import Training
from tests.support import wait_until
from watchdog_train.client import layout
from watchdog_train.store.slots import read_note, read_slots

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = b"seven words of a file of weights"


@contextmanager
def hub(training: Training) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A hub with one file; notes in which phase the training is at each of its requests."""
    asked: list[tuple[str, str, str]] = []

    class Answer(BaseHTTPRequestHandler):
        def note(self) -> None:
            (reading,) = read_slots(training.slot_dir).readings
            asked.append((self.command, self.path.partition("?")[0], reading.phase))

        def answer(self, content: bytes, kind: str) -> None:
            self.note()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", '"abc"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.answer(CONTENT, "application/octet-stream")

        def do_GET(self) -> None:
            if "/tree/" in self.path:
                size = len(CONTENT)
                told = f'[{{"type": "file", "path": "w.bin", "size": {size}, "oid": "abc"}}]'
                self.answer(told.encode(), "application/json")
            elif self.path.startswith("/api/"):
                siblings = '[{"rfilename": "w.bin"}]'
                told = f'{{"id": "a/b", "sha": "{COMMIT}", "siblings": {siblings}}}'
                self.answer(told.encode(), "application/json")
            else:
                self.answer(CONTENT, "application/octet-stream")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


DOWNLOAD = """
import json, sys
import huggingface_hub
from watchdog_train.client import milestones, slot, layout as L
if sys.argv[1] == "file":
    path = huggingface_hub.hf_hub_download("a/b", "w.bin")
else:
    path = huggingface_hub.snapshot_download("a/b") + "/w.bin"
print(json.dumps([open(path, "rb").read().decode(), L.PHASES[slot.words[L.W_PHASE]],
    slot.words[L.W_HOOKS_FAILED], [place["name"] for place in milestones.listed()]]))
"""


@pytest.mark.parametrize("what", ["file", "snapshot"])
def test_the_hubs_requests_and_transfers(training: Training, what: str) -> None:
    """The metadata request and the transfer are phase download, and named; after it startup."""
    pytest.importorskip("huggingface_hub")
    with hub(training) as (endpoint, asked):
        env = {"HF_ENDPOINT": endpoint, "HF_HOME": str(training.root / "hf"), "NO_PROXY": "*"}
        content, phase, failed, places = training.json(DOWNLOAD, what, env=env)
    assert content.encode() == CONTENT
    assert (phase, failed) == ("startup", 0)
    file = "/a/b/resolve/" + ("main" if what == "file" else COMMIT) + "/w.bin"
    assert ("HEAD", file, "download") in asked
    assert [method for method, path, _ in asked if path.endswith("/w.bin")][-1] == "GET"
    # The library asks for other things of its own, at times: those are not of this repository.
    assert {phase for _, path, phase in asked if "/a/b" in path} == {"download"}, asked
    assert {"hub metadata request", "hub download"} <= set(places)
    assert ("hub snapshot download" in places) == (what == "snapshot")


TRACKED = """
import json, wandb
from watchdog_train.client import milestones, slot, layout as L
run = wandb.init(project="p", mode="offline", dir=".")
run.log({"loss": 1.0})
wandb.finish()
print(json.dumps([[place["name"] for place in milestones.listed()],
    slot.words[L.W_HOOKS_FAILED], L.PHASES[slot.words[L.W_PHASE]]]))
"""
SILENT_SERVER = "import wandb\nwandb.init(project='p', entity='e')\n"


def test_wandb_offline(training: Training) -> None:
    """The real library: init and finish are places, and are left again."""
    pytest.importorskip("wandb")
    places, failed, phase = training.json(TRACKED, env={"HOME": str(training.root)})
    assert {"import wandb", "wandb.init", "wandb.finish"} <= set(places)
    assert (failed, phase) == (0, "startup")
    assert training.note()["hooks"]["wandb"] == "armed"


def test_wandb_waits_for_a_server(training: Training) -> None:
    """A server that takes the connection and never answers: the place says where it waits."""
    pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(90)
        env = {
            "WANDB_BASE_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "WANDB_API_KEY": "0" * 40,
            "WANDB_DIR": str(training.root),
            "HOME": str(training.root),
        }
        process = training.start(SILENT_SERVER, env)
        try:
            connection, _ = server.accept()

            def inside() -> bool:
                note = read_note(training.slot_dir, process.pid)
                places = () if note is None else note.milestones
                return any(one.name == "wandb.init" and one.end is None for one in places)

            wait_until(inside, 20, "the process says that it is inside wandb.init")
            readings = read_slots(training.slot_dir).readings
            (reading,) = [one for one in readings if one.pid == process.pid]
            assert reading.phase == layout.PHASES[layout.PHASE_STARTUP]
            connection.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=20)
