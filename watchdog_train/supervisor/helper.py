"""One child process that works for the supervisor: started, asked, heard, ended.

Every method returns at once. A child with one question gets it as a file and answers with a file;
one that stays is told by its stdin and says lines. Who needs something of a process uses this: it
decides what a failure means, and when to try again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.trusted_files import make_folder, remove
from watchdog_train.whole_files import read_json, replace_json

LINE_CAP_BYTES = 1 << 18
ANSWER_CAP_BYTES = 16 << 20
Answer = TypeVar("Answer")


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of ours.

    -I: the training's directory must not be on the path. It may hold a file named like a module of
    ours or of the standard library.
    """
    return (sys.executable, "-I", "-m", name, *arguments)


class Helper:
    """At most one process at a time, under one name."""

    def __init__(self, children: ChildTable, name: str, folder: Path | None = None) -> None:
        """`folder` takes question and answer; it is private, and made when it is missing."""
        self.children = children
        self.name = name
        self.question = (folder or Path()) / f"{name}-question.json"
        self.answer_file = self.question.with_name(f"{name}-answer.json")
        self._child: Child | None = None
        self._stdin = self._output = -1
        self._rest = b""

    @property
    def running(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return self._child is not None and self._child.ended is None

    def start(
        self,
        argv: Sequence[str],
        *,
        question: msgspec.Struct | None = None,
        deadline_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stays: bool = False,
    ) -> None:
        """Start it.

        Args:
            argv: the command; the path of the question's file is added.
            question: what it is to do; its field `out` becomes the path for the answer. An old
                answer is removed first.
            deadline_s: until it is killed; None: it ends by itself.
            env: None: that of the supervisor.
            stays: we hear its lines, and its stdin ends when we do.

        Raises:
            OSError: it cannot be started; no file of it is left.
        """
        self.close()
        self._child = None
        stdin = said = subprocess.DEVNULL
        try:
            if question is not None:
                make_folder(self.question.parent)
                remove(self.answer_file)
                if hasattr(question, "out"):
                    question = msgspec.structs.replace(question, out=str(self.answer_file))
                replace_json(self.question, question)
                argv = (*argv, str(self.question))
            if stays:
                stdin, self._stdin = os.pipe()
                self._output, said = os.pipe()
                if sys.platform != "win32":
                    os.set_blocking(self._stdin, False)
                    os.set_blocking(self._output, False)
            self._child = self.children.spawn(
                argv,
                name=self.name,
                deadline_s=deadline_s,
                env=env,
                stdin=stdin,
                stdout=said,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self.close()
            self._forget_files()
            raise
        finally:
            for fd in (stdin, said):
                if fd >= 0:
                    os.close(fd)

    def hear(self) -> list[bytes] | None:
        """The lines since the last call; None once it says nothing any more."""
        try:
            data = os.read(self._output, LINE_CAP_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_CAP_BYTES:
            return None
        return lines if data else None

    def answer(self, kind: type[Answer]) -> Answer | None:
        """What it has answered, None without a valid answer; the files are removed."""
        found = read_json(self.answer_file, kind, cap_bytes=ANSWER_CAP_BYTES)
        self._forget_files()
        return found

    @property
    def seconds(self) -> float:
        """How long it ran; 0 as long as it does."""
        ended = self._child.ended if self._child is not None else None
        return ended.seconds if ended is not None else 0.0

    def why_no_answer(self) -> str:
        """Why there is none, for a person."""
        ended = self._child.ended if self._child is not None else None
        if ended is None:
            return "it has not ended"
        if ended.timed_out:
            return f"it did not end within {ended.seconds:.0f} s and was killed"
        if ended.signal is not None:
            return f"it was killed by signal {ended.signal}"
        return f"it failed with exit code {ended.code}" if ended.code else "it left no answer"

    def kill(self) -> None:
        """Have it ended by the next polls of the table, and hear it no more."""
        if self._child is not None and self.running:
            self.children.end(self._child)
        self.close()

    def close(self) -> None:
        """Close our ends: one that stays ends by that."""
        for fd in (self._stdin, self._output):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self._stdin = self._output = -1
        self._rest = b""

    def _forget_files(self) -> None:
        # A question may hold secrets (addresses to send to): one that nobody has read goes, too.
        for path in (self.question, self.answer_file):
            with suppress(OSError):
                remove(path)
