"""The environment of a training: the user's, the plan's changes, and what the client reads.

It must not put anything secret into a file, and adds exactly one entry to PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from watchdog_train.client import layout
from watchdog_train.core.model import Plan
from watchdog_train.system import service_manager

INJECT_DIRECTORY = Path(layout.__file__).parent / "inject"
PER_ATTEMPT_NAMES = tuple(
    value
    for name, value in vars(layout).items()
    if name.startswith("ENV_") and not name.startswith("ENV_NO_")
)


def training_environment(
    base_env: Mapping[str, str],
    *,
    run_id: str,
    token: str,
    scope: str,
    run_dir: Path,
    attempt: int,
    slot_dir: Path | None,
    plan: Plan,
    hold_saves: bool = False,
) -> dict[str, str]:
    """The user's environment, the plan's changes to it, and what the client reads."""
    not_its_own = {*PER_ATTEMPT_NAMES, *service_manager.VARIABLES}
    env = {name: value for name, value in base_env.items() if name not in not_its_own}
    env.update(plan.env)
    # Never a trailing separator: it would put the working directory on sys.path.
    env["PYTHONPATH"] = os.pathsep.join(
        entry for entry in (str(INJECT_DIRECTORY), env.get("PYTHONPATH")) if entry
    )
    env[layout.ENV_RUN_ID] = run_id
    env[layout.ENV_TOKEN] = token
    env[layout.ENV_SCOPE] = scope
    env[layout.ENV_RUN_DIR] = str(run_dir)
    env[layout.ENV_ATTEMPT] = str(attempt)
    env[layout.ENV_ATTEMPT_DIR] = str(run_dir / "attempts" / f"{attempt:04d}")
    env[layout.ENV_SETTINGS] = json.dumps(plan.in_process)
    if slot_dir is not None:
        env[layout.ENV_SLOT_DIR] = str(slot_dir)
    if plan.checkpoint is not None:
        env[layout.ENV_RESUME_FROM] = plan.checkpoint.path
        env[layout.ENV_RESUME_HOOK] = json.dumps(
            {
                "via": plan.resume_via,
                "format": plan.checkpoint.format,
                "path": plan.checkpoint.path,
                "step": plan.checkpoint.step,
                "output_dir": plan.checkpoint.home or os.path.dirname(plan.checkpoint.path),
                "ordinal": plan.checkpoint.ordinal,
                "nth": plan.checkpoint.nth,
                "signature": plan.checkpoint.signature,
                "saved_at": plan.checkpoint.saved_at,
                "recorded": plan.checkpoint.how_checked == "recorded",
                "counters": plan.checkpoint.counters,
                "hold": hold_saves,
            }
        )
    _record_collectives(env)
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
