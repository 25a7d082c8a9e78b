"""Runs one case, in a world of its own where there can be one, and writes what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from contextlib import suppress
from pathlib import Path

from tests.chaos import checks, isolation
from tests.chaos.bystanders import Crowd
from tests.chaos.case import LIMITS, SETTINGS, Case, LateError, NotReachedError
from tests.chaos.faults import FAULTS
from tests.chaos.plan import CaseSpec
from tests.chaos.trainings import SHAPES
from tests.support import (
    MARKER,
    marked_processes,
    of_type,
    reap_started,
    scenario_environment,
    write_wtrain,
)


def main() -> int:
    """Arguments: a file with the case, a folder to work in, a file for the answer."""
    spec = CaseSpec.from_json(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    cwd, answer = Path(sys.argv[2]), Path(sys.argv[3])
    os.environ[MARKER] = uuid.uuid4().hex
    began = time.monotonic()
    told = run(spec, cwd)
    told["seconds"] = round(time.monotonic() - began, 1)
    answer.write_text(json.dumps(told), encoding="utf-8")
    return 0


def run(spec: CaseSpec, cwd: Path) -> dict[str, object]:
    """What came of it: outcome survived, failed, or missed (the fault's moment never came)."""
    case = _case(spec, cwd)
    fault = FAULTS[spec.fault]
    if fault.needs_isolation and not isolation.is_isolated():  # it would strike the machine itself
        return {"outcome": "missed", "problems": [], "missed": "needs a world of its own"}
    problems: list[str] = []
    reached = ""
    memory_before = checks.shared_memory()
    try:
        if fault.prepare is not None:
            fault.prepare(case)
        if case.impossible:
            return {"outcome": "missed", "problems": [], "missed": case.impossible}
        assert case.crowd is not None
        case.crowd.gather(case.chance)
        case.start()
        try:
            case.until(spec.moment)
            _pretend(case)
            fault.strike(case)
        except NotReachedError as error:
            reached = str(error)
        code = case.follow()
        problems += checks.after_run(case, code, spec.checksum)
        problems += case.complaints
        problems += case.crowd.disperse()
        problems += checks.after_all(case, memory_before)
    except (AssertionError, LateError) as error:
        problems.append(f"{type(error).__name__}: {str(error)[:3000]}")
    except Exception:  # a bug of the campaign must be told, too
        problems.append(f"the campaign failed: {traceback.format_exc()[-3000:]}")
    finally:
        _end_everything(case)
    outcome = "failed" if problems else "missed" if reached else "survived"
    told: dict[str, object] = {"outcome": outcome, "problems": problems, "missed": reached}
    if problems:
        told["notes"] = case.notes
        told["description"] = case.describe()
    return told


def _case(spec: CaseSpec, cwd: Path) -> Case:
    """A folder with settings, and nothing started yet."""
    case = Case(cwd, SHAPES[spec.shape], spec.trouble, f"{spec.seed}/{spec.number}/inside")
    cwd.mkdir(parents=True, exist_ok=True)
    (cwd / "fast.yaml").write_text(SETTINGS, encoding="utf-8")
    write_wtrain(cwd, LIMITS)
    case.crowd = Crowd(cwd, case.command, scenario_environment(cwd))
    return case


def _pretend(case: Case) -> None:
    """Bystanders with this run's token, once there is one."""
    launching = of_type(case.events, "attempt_launching")
    if launching and case.crowd is not None:
        run_id = case.run_dir.name if case.run_dir is not None else ""
        case.crowd.pretend({"WTRAIN_TOKEN": launching[-1]["token"], "WTRAIN_RUN_ID": run_id})


def _end_everything(case: Case) -> None:
    """A world of its own ends with its first process; else we end what carries our marker."""
    with suppress(OSError, subprocess.SubprocessError):
        case.catch_up()
    reap_started()
    if isolation.is_isolated():
        return
    for pid in marked_processes(os.environ[MARKER]):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(isolation.settle(main))
