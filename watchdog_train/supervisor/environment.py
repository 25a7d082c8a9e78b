"""The environment of a training: the user's, the plan's changes, and what the client reads.

It must not put anything secret into a file, and adds exactly one entry to PYTHONPATH. What a run
had is kept with it for a restart; of possible secrets only the names.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from watchdog_train.client import layout
from watchdog_train.core.model import Plan, Value
from watchdog_train.core.recovery.outcome import stops_what_began_anew
from watchdog_train.evidence.redact import is_secret_name, redact_text
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.duplicates import JOB_VARIABLES
from watchdog_train.whole_files import read_json, replace_json

if TYPE_CHECKING:
    from watchdog_train.supervisor.context import Context

INJECT_DIRECTORY = Path(layout.__file__).parent / "inject"
PER_ATTEMPT_NAMES = tuple(
    value
    for name, value in vars(layout).items()
    if name.startswith("ENV_") and not name.startswith("ENV_NO_")
)
_CAP_BYTES = 16 << 20
_OF_THE_SESSION = re.compile(
    r"SSH_|XDG_(?:RUNTIME|SESSION|VTNR|SEAT)|DBUS_|DISPLAY\Z|WAYLAND_|XAUTHORITY\Z|TMUX|STY\Z|TERM|"
    r"COLORTERM|WINDOWID|SHLVL\Z|OLDPWD\Z|_\Z|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_"
)
"""Variables of one login: in a later login they name things that are gone."""


class KeptEnvironment(Value):
    variables: dict[str, str]
    secrets: tuple[str, ...]
    """Names of variables whose values are written nowhere."""


class EnvironmentAgain(Value):
    """The environment for one more attempt of a run from another shell."""

    variables: dict[str, str]
    missing: tuple[str, ...] = ()
    """Secrets that the run had and this shell does not have."""
    different: tuple[str, ...] = ()
    """Variables that this shell has with another value."""


def keep_environment(directory: RunDirectory, environment: Mapping[str, str]) -> None:
    """Record the run's environment; OSError if the file cannot be written."""
    kept = {name: value for name, value in environment.items() if not _is_secret(name, value)}
    before = read_json(directory.environment, KeptEnvironment, cap_bytes=_CAP_BYTES)
    # One that was missing at a restart is still missing.
    names = {*environment, *(before.secrets if before is not None else ())} - kept.keys()
    secrets = tuple(sorted(name for name in names if _is_text(name)))
    replace_json(directory.environment, KeptEnvironment(variables=kept, secrets=secrets))


def environment_again(
    directory: RunDirectory,
    shell: Mapping[str, str],
    changes: Iterable[str] = (),
    *,
    same_job: bool = False,
) -> EnvironmentAgain:
    """What the run had; a login's own variables and secrets are this shell's.

    All of it is this shell's where the run's was not kept, and where either is of a job, whose
    script prepares it anew at every start. The same job may be in the shell of another task.
    Each change is NAME=VALUE, or NAME for the value of this shell.
    """
    kept = read_json(directory.environment, KeptEnvironment, cap_bytes=_CAP_BYTES)
    found, missing, different = dict(shell), set[str](), set[str]()
    of_a_job = kept is not None and (_is_of_a_job(shell) or _is_of_a_job(kept.variables))
    if kept is not None and (same_job or not of_a_job):
        found = {name: value for name, value in shell.items() if _is_of_now(name, kept.secrets)}
        old = {name: value for name, value in kept.variables.items() if not _is_of_now(name)}
        missing = {name for name in kept.secrets if not _is_of_now(name)} - found.keys()
        both = old.keys() & shell.keys() - {"PWD"}  # the run's directory is its own
        different = {name for name in both if old[name] != shell[name]}
        found |= old
    for change in changes:
        name, equals, value = change.partition("=")
        missing.discard(name)
        different.discard(name)
        if equals or name in shell:
            found[name] = value if equals else shell[name]
        else:
            found.pop(name, None)
    return EnvironmentAgain(
        variables=found, missing=tuple(sorted(missing)), different=tuple(sorted(different))
    )


def _is_of_a_job(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name) for name in (*JOB_VARIABLES, "KUBERNETES_SERVICE_HOST"))


def _is_of_now(name: str, secrets: Iterable[str] = ()) -> bool:
    return name in secrets or _OF_THE_SESSION.match(name) is not None


def _is_secret(name: str, value: str) -> bool:
    # Bytes that are not text may be a secret.
    return not _is_text(name + value) or is_secret_name(name) or redact_text(value) != value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def training_environment(
    context: Context, plan: Plan, token: str, *, unkept: bool = False
) -> dict[str, str]:
    """The user's environment, the plan's changes to it, and the client's variables.

    `unkept`: for a training that began again instead of resuming: it will be stopped.
    """
    run = context.directory
    heartbeat_every = context.policy.output.heartbeat_every
    not_its_own = {*PER_ATTEMPT_NAMES, "WTRAIN_JOB_KEY"}
    env = {name: value for name, value in context.environment.items() if name not in not_its_own}
    env.update(plan.env)
    # Never a trailing separator: it would put the working directory on sys.path.
    env["PYTHONPATH"] = os.pathsep.join(
        entry for entry in (str(INJECT_DIRECTORY), env.get("PYTHONPATH")) if entry
    )
    env[layout.ENV_RUN_ID] = run.run_id
    env[layout.ENV_TOKEN] = token
    env[layout.ENV_SCOPE] = context.scope
    env[layout.ENV_RUN_DIR] = str(run.path)
    env[layout.ENV_ATTEMPT] = str(plan.attempt)
    env[layout.ENV_ATTEMPT_DIR] = str(run.attempt(plan.attempt))
    env[layout.ENV_SETTINGS] = json.dumps(plan.in_process)
    if heartbeat_every:
        env[layout.ENV_HEARTBEAT] = f"{heartbeat_every} {time.monotonic():.3f}"
    if context.slot_dir is not None:
        env[layout.ENV_SLOT_DIR] = str(context.slot_dir)
    if (found := plan.checkpoint) is not None:
        env[layout.ENV_RESUME_FROM] = found.path
        env[layout.ENV_RESUME_HOOK] = json.dumps(
            {
                "via": plan.resume_via,
                "format": found.format,
                "path": found.path,
                "saved_as": found.copy_of or found.path,
                "step": found.step,
                "output_dir": found.home or os.path.dirname(found.path),
                "ordinal": found.ordinal,
                "nth": found.nth,
                "sole": plan.sole,
                "signature": found.signature,
                "saved_at": found.saved_at,
                "recorded": found.how_checked == "recorded",
                "counters": found.counters,
                "hold": stops_what_began_anew(context.policy),
                "unkept": unkept,
            }
        )
    _record_collectives(env)
    # torchrun copies the error file of the rank that failed first to this one.
    error_file = os.path.join(env[layout.ENV_ATTEMPT_DIR], layout.ELASTIC_ERROR)
    env.setdefault("TORCHELASTIC_ERROR_FILE", error_file)
    # setproctitle overwrites the environment that /proc shows, and with it the token.
    env.setdefault("SPT_NOENV", "1")
    if sys.platform == "win32":
        # An emoji printed into a cp1252 pipe raises UnicodeEncodeError.
        env.setdefault("PYTHONIOENCODING", "utf-8")
    return env


def _record_collectives(env: dict[str, str]) -> None:
    """Torch keeps its newest collectives, and NCCL leaves them with us when one times out.

    Only by the names of torch 2.9 and later: 2.13 warns on stderr of the old ones, and has them
    on by default.
    """
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in env:
        env.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in env:
        prefix = os.path.join(env[layout.ENV_ATTEMPT_DIR], layout.RECORDER_PREFIX)
        env.setdefault("TORCH_FR_DUMP_TEMP_FILE", prefix)
