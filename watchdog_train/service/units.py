"""A systemd user unit and a launchd property list for one `wtrain run`.

Both leave the training alone when the supervisor dies and start the same command again: the run
finds its training alive and goes on with it. A verdict of ours (an exit code) is final.
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchdog_train.errors import EXIT_OUR_BUG

WATCHDOG_S = 60
"""Without a word of ours for so long we hang, and systemd begins anew; a look takes a second."""
STOP_WITHIN_S = 300
"""For the save that a stop asks for, the grace after it, and the report."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is to be started, and where."""

    name: str
    argv: Sequence[str]
    """The whole command, beginning with the absolute path of a program."""
    cwd: str
    environment: Mapping[str, str]

    @property
    def label(self) -> str:
        """The service's name for its manager."""
        return f"wtrain-{_UNSAFE.sub('-', self.name).strip('-.') or 'run'}"


def systemd_unit(service: Service) -> str:
    """A user unit; systemd.service(5) and systemd.kill(5) have the keys."""
    lines = [
        "[Unit]",
        f"Description=wtrain: {_plain(service.name)}",
        "",
        "[Service]",
        "# wtrain says when training runs, and that it is alive itself.",
        "Type=notify",
        f"WatchdogSec={WATCHDOG_S}",
        f"WorkingDirectory={_path(service.cwd)}",
        *(
            f"Environment={_quoted(f'{name}={value}', dollars=False)}"
            for name, value in sorted(service.environment.items())
        ),
        f"ExecStart={' '.join(_quoted(word) for word in service.argv)}",
        "# The training outlives wtrain; started again, wtrain goes on with it.",
        "KillMode=process",
        "Restart=on-abnormal",
        f"RestartForceExitStatus={EXIT_OUR_BUG}",
        "RestartSec=5",
        "# The memory killer may end the training; wtrain has to live to say so.",
        "OOMPolicy=continue",
        "# A stop saves first.",
        f"TimeoutStopSec={STOP_WITHIN_S}",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def launchd_plist(service: Service) -> str:
    """A launch agent; launchd.plist(5) has the keys.

    launchd cannot tell exit codes apart: only a death by a signal begins anew.
    """
    logs = f"{service.cwd.rstrip('/')}/{service.label}"
    content = {
        "Label": service.label,
        "ProgramArguments": list(service.argv),
        "WorkingDirectory": service.cwd,
        "EnvironmentVariables": dict(sorted(service.environment.items())),
        "RunAtLoad": True,
        "KeepAlive": {"Crashed": True},
        "AbandonProcessGroup": True,
        "ExitTimeOut": STOP_WITHIN_S,
        "ProcessType": "Interactive",
        "StandardOutPath": f"{logs}.out",
        "StandardErrorPath": f"{logs}.err",
    }
    return plistlib.dumps(content, sort_keys=False).decode()


def _quoted(word: str, *, dollars: bool = True) -> str:
    """One word of a command line or one assignment, whatever is in it.

    Args:
        word: as the program is to get it.
        dollars: a `$` would be taken for a variable here; in Environment= it would not.
    """
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    if dollars:
        text = text.replace("$", "$$")
    return f'"{text}"'


def _path(path: str) -> str:
    """WorkingDirectory= takes the rest of the line as it is, but for specifiers."""
    return path.replace("%", "%%")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")[:200]
