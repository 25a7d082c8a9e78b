"""The link between a leader and its agents: real sockets, real processes of ZeroMQ."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import resource
import secrets
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.processes.test_launch import environment_of, plan_of
from tests.support import free_port, is_alive, run_command, scenario_environment, wait_until
from watchdog_train.core.policy import Job
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.redact import redact_text
from watchdog_train.store.run_directory import create
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.environment import keep_environment
from watchdog_train.supervisor.hands.link import peers
from watchdog_train.supervisor.hands.link import start as link_start
from watchdog_train.supervisor.hands.link.channel import MESSAGE_CAP_BYTES, Channel, Dialler
from watchdog_train.supervisor.hands.link.peers import LEADER, LOST_S, VARIABLE, Agent, Link
from watchdog_train.supervisor.hands.link.start import dial, meet
from watchdog_train.supervisor.job_task import own_task
from watchdog_train.supervisor.outbox import environment_for
from watchdog_train.system import current

if sys.platform == "win32":
    pytest.skip("no link on Windows", allow_module_level=True)

WAIT_S = 60.0
needs_zmq = pytest.mark.skipif(importlib.util.find_spec("zmq") is None, reason="no pyzmq")
Box = dict[int, list[tuple[str, bytes]]]


class World:
    """Ends whose turns are all made here, on a clock that may run ahead."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.children = ChildTable(current())
        self.ahead_s = 0.0
        self.ends: list[Link] = []
        self.got: Box = {}

    def now(self) -> float:
        return time.monotonic() + self.ahead_s

    def take(self, end: Any) -> Any:
        end._clock = self.now
        self.ends.append(end)
        self.got[id(end)] = []
        return end

    def turn(self) -> None:
        self.children.poll()
        for end in self.ends:
            self.got[id(end)] += end.receive()

    def until(self, predicate: Callable[[], object], why: str) -> None:
        def look() -> bool:
            self.turn()
            return bool(predicate())

        wait_until(look, WAIT_S, why)

    def sends(self, end: Any, words: bytes) -> None:
        """As soon as there is room, to the leader."""
        self.until(lambda: end.send(LEADER, words), "room for it")

    def hears(self, end: Any, *messages: tuple[str, bytes]) -> None:
        """These, and nothing else."""
        self.until(lambda: self.got[id(end)] == [*messages], f"{messages} are heard")

    def leave(self, end: Link) -> None:
        """One that is killed: no goodbye, no more turns."""
        self.ends.remove(end)
        for channel in tuple(end._channels):  # type: ignore[attr-defined]
            channel.close()

    def pids(self) -> list[int]:
        return [child.pid for child in self.children.running()]


@pytest.fixture(params=["unix", pytest.param("zeromq", marks=needs_zmq)])
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setenv(VARIABLE, secrets.token_hex(32))
    return None if request.param == "unix" else f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, secrets.token_hex(32))
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(f"job-{tmp_path}")
    yield made
    monkeypatch.setattr(peers, "LINGER_S", 0.2)  # the others make no turn meanwhile
    for end in made.ends:
        end.close()
    made.children.end_all()


def end(world: World, address: str | None, task: int = 0) -> Any:
    """Of the leader, or of the agent task1, task2, ..."""
    one = JobTask(job=world.job, source="wtrain", task=task, tasks=8, here=8, coordination=address)
    return world.take(meet(one, world.children))


def start(world: World, address: str | None, agents: int) -> list[Any]:
    """A leader and its agents, which it has heard."""
    ends = [end(world, address, task) for task in range(agents + 1)]
    world.until(lambda: all(each.was_welcome for each in ends[1:]), "linked")
    return ends


def refused(world: World, address: str | None, task: int = 0) -> WtrainError:
    """Of an end that cannot even be made."""
    with pytest.raises(WtrainError) as told:
        end(world, address, task)
    assert told.value.exit_code == 78
    return told.value


def connection(leader: Any, name: str) -> tuple[Any, bytes]:
    """By which a name is heard: another one after each loss."""
    peer = leader._peers[name]
    return peer.channel, peer.number


def silent_s(world: World, leader: Any) -> dict[str, float]:
    return {name: world.now() - peer.heard_at for name, peer in leader._peers.items()}


def test_messages_go_both_ways_whole_and_in_order(world: World, address: str | None) -> None:
    """Small ones and the largest, from two agents at once; each knows who sent what."""
    leader, first, second = start(world, address, 2)
    assert not first.send("nobody", b"x"), "unknown"
    assert not first.send(LEADER, bytes(MESSAGE_CAP_BYTES + 1)), "too long"
    sent = [bytes([n]) * size for n, size in enumerate((0, 1, 5000, MESSAGE_CAP_BYTES, 7))]
    for one in sent:
        world.sends(first, one)
        world.sends(second, one)
        world.until(lambda one=one: leader.send("task1", one), "room for it")
    world.until(lambda: len(world.got[id(leader)]) == 10 and len(world.got[id(first)]) == 5, "all")
    for name in ("task1", "task2"):
        assert [what for who, what in world.got[id(leader)] if who == name] == sent
    assert world.got[id(first)] == [(LEADER, one) for one in sent]
    assert world.got[id(second)] == []
    heard = silent_s(world, leader)
    assert heard.keys() == {"task1", "task2"}
    assert max(heard.values()) < LOST_S


def test_nobody_waits_for_an_end_that_does_not_read(world: World, address: str | None) -> None:
    """What does not fit is refused, at once, and memory stays bounded; later all goes on."""
    leader, agent = start(world, address, 1)
    world.ends.remove(leader)  # it makes no turn
    slowest = sent = 0
    for _ in range(400):
        began = time.thread_time()
        sent += agent.send(LEADER, bytes(MESSAGE_CAP_BYTES))
        slowest = max(slowest, time.thread_time() - began)
        agent.receive()
    assert sent < 400, "a queue without bounds"
    assert sent >= 4
    assert slowest < 1.0
    world.ends.append(leader)
    world.until(lambda: len(world.got[id(leader)]) >= sent, "what was taken came")
    world.sends(agent, b"again")
    world.until(lambda: world.got[id(leader)][-1][1] == b"again", "it goes on")


def test_it_waits_on_one_descriptor(world: World, address: str | None) -> None:
    leader, agent = start(world, address, 1)
    world.until(lambda: not select.select([leader.fileno()], [], [], 0.2)[0], "nothing to do")
    agent.send(LEADER, b"x")
    assert select.select([leader.fileno()], [], [], WAIT_S)[0]
    world.hears(leader, ("task1", b"x"))


def test_a_name_lives_once_and_is_free_after_its_death(
    world: World, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is told that the first lives; after a death the next one is taken."""
    monkeypatch.setattr(peers, "SURE_S", 1.0)
    leader, first = start(world, address, 1)
    second = end(world, address, 1)
    world.until(lambda: first.was_welcome or second.was_welcome, "one is linked")
    lives, other = (first, second) if first.was_welcome else (second, first)

    def said() -> bool:
        lives.send(LEADER, b"I live")
        return other.refusal is not None

    world.until(said, "the other one is refused")
    assert (other.refusal.reference, other.refusal.exit_code) == ("link-name", 78)
    assert "task1" in other.refusal.render()
    assert not other.was_welcome
    world.ends.remove(other)
    other.close()
    world.leave(lives)
    if address is not None:  # a network tells nothing of a death
        world.until(lambda: silent_s(world, leader)["task1"] > 1.0, "its last words came")
        world.ahead_s += LOST_S
    monkeypatch.setattr(peers, "SURE_S", WAIT_S)
    third = end(world, address, 1)
    world.until(lambda: third.was_welcome, "the name is free")
    world.got[id(leader)].clear()
    third.send(LEADER, b"new")
    world.hears(leader, ("task1", b"new"))


def test_a_name_is_free_once_its_holder_is_silent_for_long(world: World, tcp: str) -> None:
    """A machine that is gone closes nothing."""
    leader, first = start(world, tcp, 1)
    (helper,) = set(world.pids()) - {leader_helper(world)}
    os.kill(helper, signal.SIGSTOP)
    try:
        world.ends.remove(first)
        second = end(world, tcp, 1)
        world.until(lambda: second._refused_at, "the second one came")
        assert not second.was_welcome
        world.ahead_s += LOST_S
        assert not leader.send("task1", b"x"), "a name that was not heard for so long"
        world.until(lambda: second.was_welcome, "taken")
    finally:
        os.kill(helper, signal.SIGCONT)
        first.close()


def leader_helper(world: World) -> int:
    return world.pids()[0]


def test_versions_and_jobs_must_be_the_same(world: World) -> None:
    start(world, None, 0)

    def agent(job: str, version: str) -> Any:
        made = Agent("task1", job, Dialler(lambda: dial(world.job)))
        made._hello = msgspec.structs.replace(made._hello, version=version)
        return world.take(made)

    old, foreign = agent(world.job, "0.0.9"), agent("another", "0.1.0")
    world.until(lambda: old.refusal and foreign.refusal, "both are refused")
    for end, words in ((old, ("0.0.9", "0.1.0")), (foreign, ("another", world.job))):
        assert all(word in end.refusal.message for word in words), end.refusal.message
        assert end.refusal.exit_code == 78
    world.ahead_s += 100
    world.turn()
    assert old._channels == [], "it does not come again"
    assert not old.was_welcome


def test_a_leader_that_was_killed_is_replaced(world: World, address: str | None) -> None:
    """Its socket's file stays behind; agents come to the next one by themselves."""
    first, agent = start(world, address, 1)
    if address is None:  # as the kernel does at its death
        os.close(first._source.lock)
        first._source.socket.close()
    else:
        first._source.close()
    helper = world.pids()[0] if address else 0
    world.leave(first)
    if helper:
        world.until(lambda: not is_alive(helper), "its process ends with it")
    second = end(world, address)
    world.until(lambda: "task1" in second._peers, "it comes again")
    refused(world, address)
    world.sends(agent, b"I am here")
    world.hears(second, ("task1", b"I am here"))


@pytest.mark.parametrize("whose", [0, 1])
def test_the_process_between_machines_may_die(world: World, tcp: str, whose: int) -> None:
    """libzmq may abort: both ends live on, and meet again."""
    leader, agent = start(world, tcp, 1)
    before, linked = world.pids()[whose], connection(leader, "task1")
    os.kill(before, signal.SIGABRT)

    world.until(lambda: connection(leader, "task1") != linked, "linked again")
    world.got[id(leader)].clear()
    world.until(lambda: agent.send(LEADER, b"after") and leader.send("task1", b"after"), "room")
    world.until(lambda: ("task1", b"after") in world.got[id(leader)], "the leader hears")
    world.until(lambda: (LEADER, b"after") in world.got[id(agent)], "the agent hears")
    assert before not in world.pids()


def test_last_words_arrive(world: World, address: str | None) -> None:
    """What was queued when an end closes is sent still; no process is left."""
    leader, agent = start(world, address, 1)
    assert leader.send("task1", b"verdict" * 10_000)
    world.ends.remove(leader)
    closing = threading.Thread(target=leader.close)
    closing.start()
    world.hears(agent, (LEADER, b"verdict" * 10_000))
    world.until(lambda: not closing.is_alive(), "closed")
    assert not agent.send(LEADER, b"x") or agent.receive() == []
    world.ends.remove(agent)
    agent.close()
    world.until(lambda: not world.pids(), "no process is left")


def test_an_end_that_is_killed_leaves_no_process(world: World, tcp: str) -> None:
    """Also one that never found its leader."""
    alone = end(world, tcp, 1)
    world.until(world.pids, "started")
    (helper,) = world.pids()
    wait_until(lambda: psutil.Process(helper).num_threads() > 1, WAIT_S, "ZeroMQ runs")
    world.ends.remove(alone)
    for channel in tuple(alone._channels):
        channel.socket.close()
    world.until(lambda: not is_alive(helper), "it ends")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "need a key"),
        ("secret", "64 digits"),
        ("0" * 64, "guess"),
        ("0123456789abcdef" * 4, "guess"),
        (bytes(range(32)).hex(), "guess"),
        ("/nonexistent/key", "No such file"),
        ("open", "chmod 600"),
    ],
)
def test_without_a_key_it_is_refused(
    world: World, key: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """78, with the line to paste; nothing was started."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if key == "open":
        key = str(tmp_path / "key")
        Path(key).write_text(secrets.token_hex(32))
        Path(key).chmod(0o644)
    if key is not None:
        monkeypatch.setenv(VARIABLE, key)
    for task in (0, 1):
        told = refused(world, "tcp://127.0.0.1:29999", task)
        assert why in told.message
        assert "export WTRAIN_JOB_KEY=$(wtrain key)" in str(told.hint)
    assert world.pids() == []


def test_another_user_in_the_place_of_the_socket_is_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to a second user")
    place = tmp_path / f"wtrain-{os.getuid()}-link"
    place.mkdir()
    os.chown(place, 65534, 65534)
    monkeypatch.setattr(link_start, "shared_bases", lambda: [tmp_path])
    monkeypatch.setattr(link_start, "_BASE_CHARS", 1000)
    assert f"{place} belongs to nobody" in refused(world, None).message


@needs_zmq
def test_pyzmq_that_only_pythonpath_provides_is_refused_at_the_start(tmp_path: Path) -> None:
    """The link's process ignores PYTHONPATH: both nodes would wait in silence."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    (site,) = bare.glob("lib/python*/site-packages")
    found = importlib.util.find_spec("zmq")
    ours = Path(str(found.origin)).parent.parent
    for each in ours.iterdir():
        if not each.name.startswith(("zmq", "pyzmq")):
            (site / each.name).symlink_to(each)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "zmq").symlink_to(ours / "zmq")
    environment = {**scenario_environment(tmp_path), VARIABLE: secrets.token_hex(32)}
    address = f"tcp://127.0.0.1:{free_port()}"
    options = ("--nodes", "2", "--node-rank", "0", "--coordination", address)
    for path in (str(tmp_path / "path"), ""):
        done = run_command(
            [bare / "bin/python", "-m", "watchdog_train", "run", *options, "--", "true"],
            env={**environment, "PYTHONPATH": path},
            cwd=tmp_path,
            timeout_s=30,
            code=78,
        )
        assert "pyzmq is not installed" in done.stderr, done
        assert ("PYTHONPATH" in done.stderr) == bool(path), done


def test_a_key_may_be_in_a_file(
    world: World, tcp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(os.environ[VARIABLE] + "\n")
    path.chmod(stat.S_IRUSR)
    leader, first = start(world, tcp, 1)
    monkeypatch.setenv(VARIABLE, str(path))
    second = end(world, tcp, 2)
    world.until(lambda: first.was_welcome and second.was_welcome, "both keys are the same")
    assert leader._peers.keys() == {"task1", "task2"}
    for pid in world.pids():
        assert VARIABLE not in psutil.Process(pid).environ()
        assert path.read_text().strip() not in " ".join(psutil.Process(pid).cmdline())


def test_the_command_prints_a_new_key_each_time() -> None:
    keys = {run_command([sys.executable, "-m", "watchdog_train", "key"]).stdout for _ in "ab"}
    assert [len(bytes.fromhex(key)) for key in keys] == [32, 32]


def test_the_key_reaches_no_training_command_or_file(tmp_path: Path) -> None:
    key = secrets.token_hex(32)
    given = {VARIABLE: key, "A": "b"}
    training = environment_of(plan_of("x"), given)
    assert training["A"] == "b"
    assert key not in str(training)
    assert environment_for(given) == {"A": "b"}
    run = create(tmp_path, "key", 0.0)
    keep_environment(run, given)
    assert key not in run.environment.read_text()
    said = f"+ export {VARIABLE}={key}; env: {{'{VARIABLE}': '{key}'}}"
    assert key not in redact_text(said)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("node1:29400", "HOST:PORT"),
        ("tcp://node1", "HOST:PORT"),
        ("tcp://:1", "HOST:PORT"),
        ("tcp://127.0.0.1:99999", "port 99999"),
    ],
)
def test_a_wrong_address_is_refused(address: str, why: str) -> None:
    with pytest.raises(WtrainError, match=why) as refused:
        own_task({}, current(), Job(coordination=address), None)
    assert address in refused.value.message
    assert refused.value.exit_code == 78


def test_a_taken_port_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, secrets.token_hex(32))
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        told = refused(world, address)
    assert "already in use" in told.message
    assert told.context == address


def test_too_few_descriptors_are_refused() -> None:
    """With as many machines as descriptors ZeroMQ would turn in circles."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, int(sys.argv[1])))\n"
        "from watchdog_train.supervisor.hands.link.start import make_room\n"
        "make_room(int(sys.argv[2]))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )

    def tried(*numbers: int) -> subprocess.CompletedProcess[str]:
        return run_command([sys.executable, "-c", script, *map(str, numbers)], code=None)

    assert "wtrain needs 1280 open files for them, the limit is 1024" in tried(1024, 1024).stderr
    assert tried(1024, 700).stdout.strip() == "956"


def test_another_user_cannot_come(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the directory nor by a descriptor that was handed over."""
    base = Path(tempfile.mkdtemp(dir="/tmp"))  # not where the leaders of other tests are
    base.chmod(0o755)
    monkeypatch.setattr(link_start, "shared_bases", lambda: (base,))
    leader = end(world, None)
    path = leader._source.path
    folder = path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(os.fsencode(path)) <= 103
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    for each in (folder, folder.parent, folder / "leader"):
        each.chmod(0o777)
    came = multiprocessing.get_context("fork").Process(target=_come_as_nobody, args=(folder,))
    came.start()
    world.until(lambda: not came.is_alive(), "it came")
    assert came.exitcode == 7
    assert leader._peers == {}
    world.ends.remove(leader)
    leader.close()
    base.rmdir()


def _come_as_nobody(folder: Path) -> None:
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(folder / "leader"))
        with contextlib.suppress(OSError):
            link.settimeout(WAIT_S)
            link.recv(1)
        os._exit(7)


def test_garbage_over_a_socket_of_this_machine_ends_only_itself(world: World) -> None:
    leader, agent = start(world, None, 1)
    links = [dial(world.job) for _ in range(6)]
    with contextlib.ExitStack() as opened:
        for link in links:
            opened.enter_context(link)
        links[0].send(b"\xff" * 4096)  # a frame of four gigabytes
        Channel(links[1]).put(b"", b"H\x81\xa7version" + b"\x91" * 5000)
        Channel(links[2]).put(b"", b"")
        Channel(links[3]).put(b"task1", b"Mnot task1 at all")
        Channel(links[4]).put(b"", b"Mno hello")
        world.until(lambda: len(leader._channels) == 6, "the first is closed")
        agent.send(LEADER, b"I live")
        world.hears(leader, ("task1", b"I live"))
    assert leader._peers.keys() == {"task1"}


def test_another_key_is_not_let_in_and_said(
    world: World, tcp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, good = start(world, tcp, 1)
    monkeypatch.setenv(VARIABLE, secrets.token_hex(32))
    bad = end(world, tcp, 2)
    world.until(lambda: good.was_welcome and bad._refused_at, "it is not let in")
    assert bad.refusal is None, "the right leader may come yet"
    monkeypatch.setattr(peers, "SURE_OF_KEY_S", 0.5)
    world.until(lambda: bad.refusal and leader.other_key, "it gives up, and the leader says so")
    assert "key" in bad.refusal.message
    assert bad.refusal.exit_code == 78
    assert leader._peers.keys() == {"task1"}
    assert good.refusal is None


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
"""Of ZMTP 3.0, before the name of the mechanism (RFC 23)."""
CURVE = b"CURVE".ljust(20, b"\0") + bytes(32)
HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + os.urandom(8 + 80 + 32)
"""Of somebody who does not know the leader's public key (RFC 26)."""


KNOCKS = 50
"""Of those that were turned away so many come again, twice a second."""


def _flood(port: int, count: int, ended: Any) -> None:
    """Connections of somebody without the key, held open: silent ones, and ones with garbage."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    null = GREETING + b"NULL".ljust(20, b"\0") + bytes(32)
    says = (b"", os.urandom(500), null, GREETING + CURVE + HELLO)
    opened = [(_knock(port), says[number % len(says)]) for number in range(count)]
    while not ended.wait(0.5):
        again = KNOCKS
        for number, (link, words) in enumerate(opened):
            with contextlib.suppress(BlockingIOError):
                try:
                    if words:
                        opened[number] = (link, words[link.send(words) :])
                    if link.recv(4096):
                        continue
                except ConnectionError:
                    pass
                if again:  # it was turned away
                    again -= 1
                    link.close()
                    opened[number] = (_knock(port), b"")


def _knock(port: int) -> socket.socket:
    link = socket.socket()
    link.setblocking(False)
    link.connect_ex(("127.0.0.1", port))
    return link


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no prlimit")
@needs_zmq
def test_a_flood_without_the_key_changes_nothing(world: World, tcp: str) -> None:
    """10,000 connections to a leader with 1,024 descriptors: its agents are heard all the time.

    Its process comes to rest, though more knock all the time: without a descriptor it does not try
    to let them in again and again.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 3000:
        pytest.skip("too few descriptors for a flood")
    leader, first, second = start(world, tcp, 2)
    linked = {name: connection(leader, name) for name in ("task1", "task2")}
    helper = psutil.Process(leader_helper(world))
    resource.prlimit(helper.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    oldest = 0.0

    def talk() -> None:
        nonlocal oldest
        first.send(LEADER, b"first")
        second.send(LEADER, b"second")
        oldest = max(oldest, *silent_s(world, leader).values())

    def is_used_up() -> bool:
        talk()
        return helper.num_fds() == 1024

    def used_s() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in (helper, *helper.children()))

    def rests() -> bool:
        before, until = used_s(), time.monotonic() + 1.0
        while time.monotonic() < until:
            talk()
            world.turn()
            time.sleep(0.05)
        return is_used_up() and used_s() - before < 0.2

    forks = multiprocessing.get_context("fork")
    ended = forks.Event()
    port = int(tcp.rpartition(":")[2])
    flood = [forks.Process(target=_flood, args=(port, 2500, ended)) for _ in range(4)]
    for each in flood:
        each.start()
    try:
        world.until(is_used_up, "its descriptors are used up")
        world.until(rests, "it does not turn in circles")
    finally:
        ended.set()
        for each in flood:
            each.join()
    assert oldest < LOST_S / 2
    assert {name: connection(leader, name) for name in linked} == linked
    late = end(world, tcp, 3)
    world.until(lambda: late.was_welcome, "there is room again")
    assert set(world.got[id(leader)]) == {("task1", b"first"), ("task2", b"second")}
    assert leader._peers.keys() == {"task1", "task2", "task3"}


class Wiretap:
    """Somebody between an agent and its leader, who records, alters and repeats."""

    def __init__(self, to: int) -> None:
        self.recorded = b""
        self.alter = 0
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                agent, _ = self._server.accept()
                leader = socket.create_connection(("127.0.0.1", self._to))
                for ends in ((agent, leader), (leader, agent)):
                    threading.Thread(
                        target=self._pump, args=(*ends, ends[0] is agent), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                if up:
                    self.recorded += data
                    if self.alter and len(data) > 1000:
                        self.alter -= 1
                        data = data[:500] + bytes([data[500] ^ 1]) + data[501:]
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


@needs_zmq
def test_who_taps_the_wire_learns_and_changes_nothing(world: World, tcp: str) -> None:
    """A message that was altered ends the connection; what was recorded is of no use."""
    port = int(tcp.rpartition(":")[2])
    (leader,) = start(world, tcp, 0)
    world.until(lambda: listens(port), "the leader listens")
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(GREETING + CURVE)
        stranger.settimeout(WAIT_S)
        told = b""
        while len(told) < 64 and (part := stranger.recv(64 - len(told))):
            told += part
        stranger.sendall(HELLO)
    assert told[12:64] == CURVE
    with contextlib.closing(Wiretap(port)) as tap:
        agent = end(world, tap.address, 1)
        world.until(lambda: agent.was_welcome, "linked")
        secret = b"known only to the two" * 100
        agent.send(LEADER, secret)
        world.hears(leader, ("task1", secret))
        assert len(tap.recorded) > len(secret)
        assert secret[:21] not in tap.recorded
        assert b"task1" not in tap.recorded
        recorded, tap.alter = tap.recorded, 1

        linked = connection(leader, "task1")

        def again() -> bool:
            agent.send(LEADER, secret)
            return connection(leader, "task1") != linked

        world.until(again, "the altered message has ended the connection")
        world.sends(agent, b"end")
        world.until(lambda: ("task1", b"end") in world.got[id(leader)], "heard")
        assert set(world.got[id(leader)]) == {("task1", secret), ("task1", b"end")}
        world.got[id(leader)].clear()
        for cut in (len(recorded), len(recorded) // 2, 100):
            with socket.create_connection(("127.0.0.1", port)) as thief:
                thief.sendall(recorded[:cut])
                thief.shutdown(socket.SHUT_WR)
                thief.settimeout(WAIT_S)
                while thief.recv(1 << 16):
                    world.turn()
        assert agent.send(LEADER, b"I live")
        world.hears(leader, ("task1", b"I live"))
        assert leader._peers.keys() == {"task1"}


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
