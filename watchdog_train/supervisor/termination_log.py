"""The verdict of a run where a kubelet looks for it: the termination message of a container.

Kubernetes shows it in `kubectl describe pod`, also when the logs are gone. It is written when
something was caught, too: whoever ends the container may not wait for the end of the run.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why
from watchdog_train.evidence.redact import redact_text
from watchdog_train.report.summary import verdict_text
from watchdog_train.supervisor.newest_text import NewestText
from watchdog_train.trusted_files import (
    ForeignError,
    distrusted_owner,
    open_regular,
    refuse_foreign_links,
)

KUBELETS = Path("/dev/termination-log")
"""Kubernetes' own default of `terminationMessagePath`."""
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
"""Every container of a pod has it."""
AUTO = "auto"
LAST_S = 2.0
_WORTH = (e.EvidenceCollected, e.StallExplained, e.GivenUp, e.SupervisorLeft)


class TerminationLog:
    """The verdict of one run in one file; does nothing where nobody asks for it."""

    def __init__(
        self, wanted: str | None, *, environ: Mapping[str, str], cwd: str, auto: Path = KUBELETS
    ) -> None:
        """`wanted` is the setting: a path, `auto` or None."""
        self._path: Path | None = Path(cwd, wanted) if wanted not in (None, AUTO) else None
        if wanted == AUTO and environ.get(IN_KUBERNETES) and auto.is_file():
            self._path = auto
        self._writer = NewestText(_overwrite)
        self._said = False

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """Write what is known, if this event says more; returns at once."""
        if self._path is not None and isinstance(event, _WORTH):
            self._write(self._path, state)

    def finish(self, state: State) -> Iterator[e.Noticed]:
        """The last word, within a time limit; yields why nothing could be written."""
        if self._path is None:
            return
        self._write(self._path, state)
        late = not self._writer.wait(LAST_S)
        trouble = f"it took longer than {LAST_S:g} s" if late else self._writer.trouble
        if trouble is not None:
            why = Why("message-not-written", path=str(self._path), problem=trouble)
            yield e.Noticed(kind="termination", pids=(), why=why)

    def _write(self, path: Path, state: State) -> None:
        self._writer.write(path, redact_text(verdict_text(state)))


def _overwrite(path: Path, content: bytes) -> None:
    """In place: the kubelet has mounted that very file, and another one is not seen by it."""
    refuse_foreign_links(path)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT, mode=0o644)
    try:
        about = os.fstat(descriptor)
        if path != KUBELETS and (why := distrusted_owner(about)) is not None:
            raise ForeignError(why, path)
        if about.st_nlink > 1:  # another user may have given a file of ours this name
            raise OSError(errno.EMLINK, "it has more than one name")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
