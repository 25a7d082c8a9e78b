"""What is done to a job, kind by kind, and how it has to end."""

from __future__ import annotations

import signal
import time

from tests.led import logs
from tests.node_repeats.case import ENDED_S, SOFT_BUDGETS, STEPS, Case
from tests.nodes import NODES
from tests.support import of_type

CUT_BOUND_S = 4 * 90
"""job.lost_s of these nodes and a minute for evidence and end, four times: the machine is busy."""


def play(case: Case) -> list[str]:
    """The whole of a case, to the end of its job; what was wrong meanwhile."""
    plays = {"kill": _kill, "hang": _hang, "cut": _cut, "healthy": _healthy}
    return plays[case.spec.kind](case)


def _kill(case: Case) -> list[str]:
    if case.spec.way == "a rank":
        case.start()
        case.random_moment()
        rank = case.chance.randrange(2 * NODES)
        case.notes.append(f"SIGKILL of rank {rank}")
        case.strike(case.pids_of_ranks()[rank], signal.SIGKILL)
        return _ends(case, [0, 0], attempts=2)
    if case.spec.way == "torchrun":
        case.start()
        case.random_moment()
        node = case.chance.randrange(NODES)
        case.notes.append(f"SIGKILL of torchrun of node {node}")
        case.strike(of_type(logs(case.cwd)[node], "attempt_launched")[-1]["pid"], signal.SIGKILL)
        return _ends(case, [0, 0], attempts=2)
    return _supervisor(case)


def _supervisor(case: Case) -> list[str]:
    """No other supervisor can replace it: it is on another host."""
    victim = case.chance.randrange(NODES)
    if case.spec.way == "a supervisor, adopted":
        # Long enough for the other node to hear of the new one before the training ends.
        case.start("--steps", str(4 * STEPS))
        case.random_moment(startup=False)
        _kill_supervisor(case, victim)
        time.sleep(case.chance.uniform(0.0, 5.0))
        _adopt(case, victim)
        case.seconds["supervised again"] = time.time() - (case.struck_at or 0)
        return _ends(case, [0, 0], attempts=1)
    rank, step = case.chance.randrange(2 * NODES), case.chance.randrange(STEPS // 3, STEPS - 10)
    case.notes.append(f"rank {rank} hangs at step {step}")
    case.start("--fault", "hang", "--rank", str(rank), "--at", str(step))
    before = case.chance.randrange(1, STEPS // 3)
    case.until_step(before)
    _kill_supervisor(case, victim)
    survivor = case.job[1 - victim].result(ENDED_S)
    case.seconds["given back"] = time.time() - (case.struck_at or 0)
    problems = []
    if survivor.returncode != 75:
        problems.append(f"the other supervisor ended with {survivor.returncode}, not with 75")
    if not of_type(logs(case.cwd)[1 - victim], "evidence_collected"):
        problems.append("the other supervisor took no evidence")
    # What the dead one has left is its own node's: there it is taken up, and ended.
    _adopt(case, victim)
    taken = case.job[victim].result(ENDED_S).returncode
    case.notes.append(f"wtrain adopt ended with {taken}")
    if taken != 75:
        problems.append(f"the run of the dead supervisor ended with {taken}, not with 75")
    case.restart()
    return [*problems, *_ends(case, [0, 0], attempts=2)]


def _kill_supervisor(case: Case, victim: int) -> None:
    case.notes.append(f"SIGKILL of the supervisor of node {victim}")
    case.strike(case.job[victim].pid, signal.SIGKILL)
    case.job[victim].process.wait(10)


def _adopt(case: Case, victim: int) -> None:
    case.job[victim] = case.at[victim].start(case.cwd, "adopt", case.run_of(victim).name)


def _hang(case: Case) -> list[str]:
    rank, step = case.chance.randrange(2 * NODES), case.chance.randrange(0, STEPS - 5)
    case.notes.append(f"rank {rank} hangs at step {step}")
    case.start("--fault", "hang", "--rank", str(rank), "--at", str(step))
    problems = _ends(case, [0, 0], attempts=2)
    told = [fields for word, fields in case.said() if word == "fault"]
    case.struck_at = float(told[0]["t"]) if told else None
    for event in of_type(logs(case.cwd)[0], "stall_explained"):
        root = event["explanation"]["root"]
        culprit = root["who"] if root else {}
        because = event["explanation"]["because"] or {}
        if culprit.get("rank") not in (None, rank):
            problems.append(f"rank {rank} hangs, and the explanation names {culprit}")
        case.notes.append(f"named: {culprit.get('rank')} ({because.get('family')})")
    if not [e for log in logs(case.cwd).values() for e in of_type(log, "stall_declared")]:
        problems.append("no stall was declared")
    return problems


def _cut(case: Case) -> list[str]:
    assert case.network is not None
    case.start()
    case.random_moment(startup=False)
    case.struck_at = time.time()
    case.network.cut()
    if case.spec.way.endswith("mended"):
        return _cut_and_mended(case)
    codes = case.codes()
    took_s = time.time() - case.struck_at
    case.seconds["given back"] = took_s
    problems = [] if codes == [75, 75] else [f"exit codes {codes} after the cut, not 75 and 75"]
    if took_s > CUT_BOUND_S:
        problems.append(f"both sides have ended {took_s:.0f} s after the cut")
    for number, events in logs(case.cwd).items():
        evidence = of_type(events, "evidence_collected")
        if not evidence or evidence[0]["captured"] < 3:
            problems.append(f"node {number} has no evidence of its ranks and launcher")
        if len(of_type(events, "attempt_launching")) != 1:
            problems.append(f"node {number} went on alone")
    if case.network.pids().strip():
        problems.append("after both ends something lives in the networks")
    case.network.mend()
    case.restart()
    return [*problems, *_ends(case, [0, 0], attempts=2)]


def _cut_and_mended(case: Case) -> list[str]:
    """Mended at some moment between two seconds and shortly after both have seen a stall."""
    assert case.network is not None
    most_s = case.chance.uniform(2.0, 20.0)  # and some to connect again: job.lost_s is 30
    case.notes.append(f"mended after {most_s:.1f} s, or when both have seen a stall")

    def stalled() -> bool:
        return all(of_type(log, "stall_declared") for log in logs(case.cwd).values())

    until = time.time() + most_s
    case.until(lambda: stalled() or time.time() > until, "it is mended")
    time.sleep(case.chance.uniform(0.0, 2.0))
    case.network.mend()
    case.seconds["cut"] = time.time() - (case.struck_at or 0)
    return _ends(case, [0, 0], attempts=None)


def _healthy(case: Case) -> list[str]:
    case.start("--fault", "eval", "--rank", "0", "--eval-budgets", str(SOFT_BUDGETS))
    problems = _ends(case, [0, 0], attempts=1)
    told = [fields for word, fields in case.said() if word == "evaluated"]
    if not told or float(told[0]["budgets"]) < SOFT_BUDGETS:
        problems.append(f"rank 0 did not evaluate for ten soft budgets: {told}")
    for number, events in logs(case.cwd).items():
        if of_type(events, "stall_declared"):
            problems.append(f"node {number} has seen a stall in a healthy job")
        if [one for one in of_type(events, "signalling") if one["targets"]]:
            problems.append(f"node {number} has signalled a healthy job")
    return problems


def _ends(case: Case, codes: list[int], *, attempts: int | None) -> list[str]:
    """The job has to end so, after so many attempts on both nodes; None: 1 or 2 on both."""
    found = case.codes()
    problems = [] if found == codes else [f"exit codes {found}, not {codes}"]
    if case.launched() not in ([attempts] if attempts is not None else [1, 2]):
        problems.append(f"attempts {case.launched()}, not {attempts or '1 or 2'} on both")
    return problems
