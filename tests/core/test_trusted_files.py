"""Files are opened where they were meant, of the right owner, and only regular ones."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog_train import trusted_files
from watchdog_train.core.model.waits import FileWait
from watchdog_train.evidence.redact import write_json
from watchdog_train.trusted_files import ForeignError
from watchdog_train.whole_files import read_json, replace_json, replace_whole

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows opens no directories")
needs_second_user = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="only root can give a file to a second user",
)
NOBODY = 65534


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run directory that is held."""
    path = tmp_path / "runs/run"
    path.mkdir(mode=0o700, parents=True)
    trusted_files.hold(path)
    yield path
    trusted_files.release(path)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_only_regular_files_are_opened(held: bool, flags: int, run: Path, tmp_path: Path) -> None:
    folder = run if held else tmp_path
    (tmp_path / "target").write_text("x")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(tmp_path / "target")
    (folder / "plain").write_text("x")
    os.close(trusted_files.open_regular(folder / "plain", flags))
    for name in ("fifo", "folder", "link"):
        with pytest.raises(OSError, match=r"link|regular file|Is a directory"):
            trusted_files.open_regular(folder / name, flags)
    with pytest.raises(OSError, match="regular file"):
        trusted_files.open_regular("/dev/null", flags)


def test_a_held_directory_is_found_whatever_its_name_leads_to(run: Path) -> None:
    """Reading, replacing, listing and removing go to the directory that was opened."""
    replace_whole(run / "a.json", b"[1]")
    moved = run.parent.rename(run.parent.with_name("moved")) / "run"
    run.mkdir(parents=True)
    (run / "a.json").write_text("[2]")
    assert read_json(run / "a.json", list[int], cap_bytes=9) == [1]
    trusted_files.make_folder(run / "deep/er")
    replace_whole(run / "deep/er/b", b"b")
    trusted_files.rename(run / "deep/er/b", run / "deep/er/c")
    assert trusted_files.names(run / "deep/er") == ["c"]
    trusted_files.remove(run / "a.json")
    assert sorted(os.listdir(moved)) == ["deep"]
    assert os.listdir(run) == ["a.json"]
    # A link inside is not followed either.
    (moved / "out").symlink_to(run)
    with pytest.raises(OSError, match="out"):
        trusted_files.open_regular(run / "out/a.json")


def test_a_held_directory_that_was_removed_can_be_made_anew(run: Path) -> None:
    """Otherwise the next attempt would wait for a directory that never comes back."""
    run.rmdir()
    with pytest.raises(FileNotFoundError):
        replace_whole(run / "a", b"a")
    trusted_files.make_folder(run / "attempts/0002")
    replace_whole(run / "attempts/0002/a", b"a")
    assert (run / "attempts/0002/a").read_bytes() == b"a"


@needs_second_user
def test_whose_a_file_is_decides(run: Path, tmp_path: Path) -> None:
    """Ours and root's are used; a private group of the owner is nobody else."""
    path = run / "config.yaml"
    for uid, gid, mode, why in (
        (0, 0, 0o664, None),
        (0, NOBODY, 0o644, None),
        (0, NOBODY, 0o664, "others may write to it"),
        (0, 0, 0o602, "others may write to it"),
        (NOBODY, NOBODY, 0o600, "it belongs to nobody"),
        (4242, NOBODY, 0o600, "it belongs to user 4242"),
    ):
        path.touch()
        os.chown(path, uid, gid)
        path.chmod(mode)
        assert trusted_files.distrusted(path.stat()) == why
        if uid:
            with pytest.raises(ForeignError):
                trusted_files.open_regular(path)
            path.unlink()
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(ForeignError, match="nobody"):
        trusted_files.hold(theirs)
    assert not trusted_files.is_own(theirs)
    assert os.listdir(theirs) == []
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    trusted_files.hold(loose)
    assert stat.S_IMODE(loose.stat().st_mode) == 0o700
    trusted_files.release(loose)


SQUASHED = """
import ctypes, sys
from watchdog_train import trusted_files
ctypes.CDLL(None).setfsuid(65534)  # what a server with root squash makes of root
trusted_files.hold(sys.argv[1])
with trusted_files.open_read(sys.argv[1] + "/file") as file:
    print(file.read().decode())
print(trusted_files.is_own(sys.argv[2]))
"""


@needs_second_user
@pytest.mark.skipif(sys.platform != "linux", reason="setfsuid is Linux's")
def test_under_root_squash_we_are_whoever_our_files_belong_to() -> None:
    """Root may act in such a run, and still not in that of a third user."""
    # Not tmp_path, whose parents nobody but root may enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        folders = []
        for name, uid in (("squashed", NOBODY), ("third", 4242)):
            folders.append(Path(place, name))
            folders[-1].mkdir()
            folders[-1].chmod(0o777)
            (folders[-1] / "file").write_text("mine")
            os.chown(folders[-1], uid, uid)
            os.chown(folders[-1] / "file", uid, uid)
        command = [sys.executable, "-c", SQUASHED, *map(str, folders)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "mine\nFalse\n", done.stderr


def test_names_that_are_no_utf8_cost_no_evidence(run: Path) -> None:
    """JSON cannot carry them: a process that waits for such a file is on record all the same."""
    name = os.fsdecode(b"model-\xff.pt")
    for write in (replace_json, write_json):
        write(run / "facts.json", FileWait(call="open", path=name))
        found = read_json(run / "facts.json", FileWait, cap_bytes=4096)
        assert found.path == "model-?.pt"
