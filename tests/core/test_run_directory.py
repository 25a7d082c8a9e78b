"""Run directories: made whole or refused with advice, and found the way a user names them."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import small_disk
from watchdog_train.core.model import ProcessId
from watchdog_train.errors import EXIT_REFUSED, WtrainError
from watchdog_train.store import registry, requests, run_directory
from watchdog_train.store.lock import Holder, RunLock
from watchdog_train.store.run_paths import RunDirectory, default_runs_dir, runs_in
from watchdog_train.system import file_systems

NOON = 1_795_000_000.0


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "wtrain-runs"


def make(runs: Path, name: str = "train", at: float = NOON, tail: str = "0000") -> RunDirectory:
    run = run_directory.create(runs, name, at, lambda: tail)
    run.events.touch()
    return run


def live(run: RunDirectory) -> RunDirectory:
    registry.register(run, ProcessId(os.getpid(), 1))
    return run


def test_a_run_directory_is_private_and_ignored_by_git(runs: Path) -> None:
    """Mode 0700, `.gitignore` of `*` at the top, `latest` at the newest, folders in place."""
    run = make(runs, tail="a3f9")
    assert run.run_id.startswith("train-2026")
    assert run.run_id.endswith("-a3f9")
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert (runs / ".gitignore").read_text() == "*\n"
    assert os.readlink(runs / "latest") == run.run_id
    assert sorted(each.name for each in run.path.iterdir()) == [
        "attempts",
        "events.jsonl",
        "identity.json",
        "requests",
        "stalls",
    ]
    assert (run.name, run.attempt(3).name, run.plan(3).name) == ("train", "0003", "plan.json")


def test_latest_is_a_file_where_links_do_not_work(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    run = make(runs)
    assert (runs / "latest").read_text() == f"{run.run_id}\n"
    assert run_directory.resolve(str(runs / "latest"), runs).run_id == run.run_id


def test_the_same_second_and_tail_do_not_collide(runs: Path) -> None:
    tails = iter(["0000", "0000", "0001"])
    first = run_directory.create(runs, "train", NOON, lambda: next(tails))
    second = run_directory.create(runs, "train", NOON, lambda: next(tails))
    assert first.path != second.path
    assert runs_in(runs)[-1] == second


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train", "train"),
        ("../../etc/passwd", "etc-passwd"),
        (".hidden", "hidden"),
        ("a b\tc\n", "a-b-c"),
        ("näme", "n-me"),
        ("", "run"),
        ("...", "run"),
        ("x" * 300, "x" * 64),
        ("$(rm -rf)", "rm--rf"),
    ],
)
def test_names_are_safe_as_folder_names(text: str, name: str) -> None:
    assert run_directory.clean_name(text) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--x"], "train"),
        (["python", "-u", "src/sft run.py"], "sft-run"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train"),
        (["accelerate", "launch", "C:\\work\\dpo.py"], "dpo"),
        (["python", "-m", "trl.scripts.sft"], "sft"),
        (["bash", "start.sh"], "start"),
        (["/usr/bin/celery", "worker"], "celery"),
        (["python.exe"], "python"),
        ([], "run"),
    ],
)
def test_a_run_is_named_after_its_script(command: list[str], name: str) -> None:
    assert run_directory.name_from_command(command) == name


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "full disk"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "may not be written"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_with_advice(
    runs: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(_path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_directory, "refuse_full", refuse)
    with pytest.raises(WtrainError) as caught:
        run_directory.create(runs, "train", NOON)
    assert words in caught.value.message
    assert caught.value.exit_code == EXIT_REFUSED
    assert "--runs-dir" in str(caught.value.hint)
    assert runs_in(runs) == ()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WtrainError, match="is not a directory"):
            run_directory.create(place, "train")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 32 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounts a small tmpfs")
    with small_disk(tmp_path / "mounted", "32k") as place:
        yield place


def test_a_real_full_file_system_is_refused(mounted: Path) -> None:
    """Folders can be made on a full tmpfs, data not: it is noticed at the start."""
    with pytest.raises(WtrainError, match="full disk"):
        run_directory.create(mounted / "runs", "train")
    assert runs_in(mounted / "runs") == ()


def test_a_real_read_only_file_system_is_refused(mounted: Path) -> None:
    remount = ["mount", "-o", "remount,ro", str(mounted)]
    subprocess.run(remount, timeout=10, check=True)
    with pytest.raises(WtrainError, match="read-only"):
        run_directory.create(mounted / "runs", "train")


def test_runs_dir_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_runs_dir() == tmp_path / "wtrain-runs"
    monkeypatch.setenv("WTRAIN_RUNS_DIR", "elsewhere")
    assert default_runs_dir() == tmp_path / "elsewhere"
    assert default_runs_dir("/third") == Path("/third")


def test_a_run_is_found_by_id_name_prefix_and_path(runs: Path, tmp_path: Path) -> None:
    old = make(runs, "train", NOON, "0001")
    new = make(runs, "train", NOON + 5, "0002")
    other = make(runs, "train-big", NOON + 9, "0003")
    assert run_directory.resolve(old.run_id, runs) == old
    assert run_directory.resolve("train", runs) == new
    assert run_directory.resolve("train-big", runs) == other
    assert run_directory.resolve(other.run_id[:12], runs) == other
    assert run_directory.resolve(str(old.path), tmp_path).path == old.path
    assert run_directory.resolve(str(runs / "latest"), tmp_path).path == other.path
    assert run_directory.resolve(None, runs) == other


def test_an_ambiguous_or_unknown_reference_names_the_candidates(runs: Path) -> None:
    first, second = make(runs, tail="0001"), make(runs, at=NOON + 1, tail="0002")
    with pytest.raises(WtrainError) as caught:
        run_directory.resolve("trai", runs)
    assert caught.value.reference == "run-ambiguous"
    assert first.run_id in str(caught.value.hint)
    assert second.run_id in str(caught.value.hint)
    with pytest.raises(WtrainError) as caught:
        run_directory.resolve("nonsense", runs)
    assert caught.value.reference == "run-unknown"
    assert second.run_id in str(caught.value.hint)


def test_without_a_run_here_the_newest_live_one_is_meant(runs: Path, tmp_path: Path) -> None:
    """From another directory `status` finds what runs on this machine."""
    with pytest.raises(WtrainError, match="no run here"):
        run_directory.resolve(None, tmp_path / "nothing")
    live(make(runs, tail="0001"))
    newest = live(make(runs, at=NOON + 1, tail="0002"))
    assert run_directory.resolve(None, tmp_path / "nothing").path == newest.path
    assert run_directory.resolve("train", tmp_path / "nothing").path == newest.path


def test_an_acting_command_means_a_run_of_this_directory(runs: Path, tmp_path: Path) -> None:
    """`stop` without RUN needs one live run here; a run of another directory must be named."""
    with pytest.raises(WtrainError, match="no run is live in this directory"):
        run_directory.resolve_live(None, runs)
    make(runs, tail="0009")
    one = live(make(runs, tail="0001"))
    assert run_directory.resolve_live(None, runs).path == one.path
    with pytest.raises(WtrainError, match="no run is live in this directory") as caught:
        run_directory.resolve_live(None, tmp_path / "nothing")
    assert one.run_id in str(caught.value.hint)
    assert str(runs) in str(caught.value.hint)
    elsewhere = live(make(tmp_path / "there", tail="0002"))
    assert run_directory.resolve_live(None, runs).path == one.path
    assert run_directory.resolve_live(elsewhere.run_id, runs).path == elsewhere.path
    live(make(runs, tail="0003"))
    with pytest.raises(WtrainError, match="several runs are live"):
        run_directory.resolve_live(None, runs)


def test_a_live_run_here_is_found_without_the_list_of_live_runs(runs: Path) -> None:
    run = make(runs, tail="0001")
    lock = RunLock(run.lock, Holder(pid=os.getpid(), start=1, host="here"))
    lock.acquire()
    assert run_directory.resolve_live(None, runs).path == run.path
    lock.release()


def test_strangers_in_the_runs_directory_are_no_runs(runs: Path) -> None:
    run = make(runs)
    (runs / "notes").mkdir()
    (runs / "train-20261121-120000-zzzz").mkdir()
    (runs / "evil-20261121-120000-0000").symlink_to("/")
    assert runs_in(runs) == (run,)


def test_requests_are_taken_once_in_order(runs: Path) -> None:
    run = make(runs)
    requests.post(run, "save", "wtrain save")
    requests.post(run, "stop", "wtrain stop")
    taken = requests.take(run)
    assert [(each.kind, each.by) for each in taken] == [
        ("save", "wtrain save"),
        ("stop", "wtrain stop"),
    ]
    assert requests.take(run) == []


def test_a_bad_request_is_removed_and_ignored(runs: Path) -> None:
    """Garbage, an unknown kind, a huge file and a stray name do no harm."""
    run = make(runs)
    (run.requests / "1-stop.json").write_bytes(b"\xff{")
    (run.requests / "2-stop.json").write_bytes(b'{"type":"Request","kind":"explode","by":"x"}')
    (run.requests / "3-stop.json").write_bytes(b"[" * 200_000)
    (run.requests / "..json").write_bytes(b"")
    requests.post(run, "stop_now", "me")
    assert [each.kind for each in requests.take(run)] == ["stop_now"]
    assert [each.name for each in run.requests.iterdir()] == ["..json"]


def test_a_request_to_a_vanished_run_is_an_error(runs: Path) -> None:
    run = RunDirectory(runs / "gone" / "train-20261121-120000-0000")
    with pytest.raises(WtrainError) as caught:
        requests.post(run, "stop", "me")
    assert caught.value.reference == "run-unopenable"


def test_the_list_of_live_runs(runs: Path) -> None:
    """Registered runs are listed oldest first with whether they are supervised, until forgotten."""
    first, second = make(runs, tail="0001"), make(runs, at=NOON + 1, tail="0002")
    for run in (second, first):
        assert registry.register(run, ProcessId(7, 8), boot_id="boot")
    lock = RunLock(first.lock, Holder(pid=os.getpid(), start=1, host="h"))
    lock.acquire()
    assert [(each.run_id, each.supervised) for each in registry.live_runs()] == [
        (first.run_id, True),
        (second.run_id, False),
    ]
    lock.release()
    registry.forget(first)
    assert [each.run_id for each in registry.live_runs(boot_id="boot")] == [second.run_id]
    assert registry.live_runs(boot_id="next boot") == ()
    assert registry.live_runs() == ()


def test_stale_and_strange_entries_are_not_listed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, ours, theirs = (make(runs, tail=f"000{number}") for number in range(3))
    for run in (gone, ours):
        registry.register(run, ProcessId(7, 8))
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    registry.register(theirs, ProcessId(7, 8))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(runs.parent / "state"))
    listed = file_systems.state_directory() / "runs"
    (listed / "garbage.json").write_bytes(b"{]")
    for path in gone.path.iterdir():
        path.unlink() if path.is_file() else path.rmdir()
    gone.path.rmdir()
    assert [each.run_id for each in registry.live_runs()] == [ours.run_id]
    assert not (listed / f"{gone.run_id}.json").exists()
    assert (listed / f"{theirs.run_id}.json").exists()


def test_an_unwritable_home_does_not_keep_a_run_from_starting(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not registry.register(make(runs), ProcessId(7, 8))
    assert registry.live_runs() == ()


def test_private_memory_of_somebody_else_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that others can enter, or a link, is passed over for the next one."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    monkeypatch.setattr(file_systems, "runtime_bases", lambda: (first, second))
    user = os.getuid()
    (first / f"wtrain-{user}-spill").mkdir()
    (first / f"wtrain-{user}-spill").chmod(0o777)
    found = file_systems.private_runtime_directory("spill", "run", make=True)
    assert found == second / f"wtrain-{user}-spill" / "run"
    assert found.stat().st_mode & 0o777 == 0o700
    (first / f"wtrain-{user}-lock").symlink_to(second)
    assert file_systems.private_runtime_directory("lock", "run", make=False) is None
