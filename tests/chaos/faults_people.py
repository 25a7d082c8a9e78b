"""What people do at a random moment: stop, interrupt, start again, adopt what is supervised."""

from __future__ import annotations

import signal

from tests.chaos.case import Case, NotReachedError
from tests.support import read_log, run_directories

REFUSED = 78


def _may_be_over(case: Case) -> None:
    """A request may come too late: then the run ends as it would have ended."""
    case.expected.codes |= {0} if _late(case) else set()


def _late(case: Case) -> bool:
    finished = any(line[3] == "finished" for line in case.journal())
    return finished or any(event["type"] == "run_finished" for event in case.events)


def stop(case: Case) -> None:
    _request(case, "stop")


def stop_now(case: Case) -> None:
    _request(case, "stop", "--now")


def _request(case: Case, *words: str) -> None:
    run_dir = case.run_dir
    assert run_dir is not None
    case.expected.codes = {77}
    _may_be_over(case)
    asked = case.ask(*words, str(run_dir), within_s=120)
    if asked.returncode not in (0, 77):
        case.complain(asked)


def interrupt(case: Case) -> None:
    case.expected.codes = {130}
    _may_be_over(case)
    case.kill(case.one("supervisor"), signal.SIGINT)


def interrupt_twice(case: Case) -> None:
    interrupt(case)
    case.wait(case.chance.uniform(0.0, 0.5))
    if not case.ended():
        case.kill(case.one("supervisor"), signal.SIGINT)


def stop_and_kill(case: Case) -> None:
    """The supervisor dies over a Ctrl-C: whoever adopts brings the run to its end."""
    interrupt(case)
    case.wait(case.chance.choice((0.05, 0.3, 2.0)) * case.chance.random())
    if case.ended():
        return
    # Where the request had not reached the log yet it died with the supervisor.
    case.expected.codes |= {0}
    case.kill(case.one("supervisor"), signal.SIGKILL)


def second_supervisor(case: Case) -> None:
    """wtrain adopt on a run that is supervised: refused, and nothing comes of it."""
    case.expected.harmless = True
    run_dir = case.run_dir
    assert run_dir is not None
    asked = case.ask("adopt", str(run_dir))
    if asked.returncode != REFUSED:
        case.complain(asked)


def same_training(case: Case) -> None:
    """wtrain run of the same command in the same place: refused while the first one lives."""
    case.expected.harmless = True
    words = ("run", "--config", "fast.yaml", "--runs-dir", "twins", "--", *case.command)
    asked = case.ask(*words, env={"CHAOS_JOURNAL": "twin-journal.txt"})
    if asked.returncode == REFUSED:
        return
    over = [event["t"] for event in case.events if event["type"] == "run_finished"]
    twins = [read_log(path) for path in run_directories(case.cwd, "twins")]
    if over and twins and over[0] < twins[0][0]["t"]:
        raise NotReachedError("the run had ended before the same training looked for it")
    case.complain(asked)


def dump(case: Case) -> None:
    """SIGQUIT: evidence now, and no harm."""
    case.expected.harmless = True
    case.kill(case.one("supervisor"), signal.SIGQUIT)
