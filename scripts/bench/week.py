"""A week of one healthy training in minutes: what its log, its trace, memory and `status` grow to.

    python scripts/bench/week.py [--days 7] [--ranks 1] [--workers 7]

The samples and the clock are simulated; detector, rules, fold, event log and trace are the
product's own, and `wtrain status` reads the run directory that they leave. The training evaluates
for ten seconds every quarter of an hour, and starts its workers anew after that.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from measured import REPOSITORY, WTRAIN, bare_environment, machine, row_of, table_of

sys.path.insert(0, str(REPOSITORY))

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Record
from watchdog_train.core.decide import decide
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.detection.detect import verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Sample
from watchdog_train.core.policy import Policy
from watchdog_train.core.trace import TraceWriter
from watchdog_train.store.event_log import EventLog
from watchdog_train.store.run_directory import create
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.store.trace_file import TraceFile

LOOK_S, DAY_S = 2.0, 86400
EVALUATES_EVERY_S, EVALUATES_S = 900, 10
HEADER = (
    "days",
    "events",
    "log, MiB",
    "trace, MiB",
    "memory, MiB",
    "status, CPU ms",
    "CPU s a day",
)


class Clock:
    """Of the log and of everything else here."""

    now = 0.0

    def wall(self) -> float:
        return 1e9 + self.now

    def monotonic(self) -> float:
        return self.now


def look(now: float, ranks: int, workers: int) -> Sample:
    """Steps of a third of a second, unless it evaluates."""
    begun, into_s = divmod(now, EVALUATES_EVERY_S)
    phase = "eval" if into_s > EVALUATES_EVERY_S - EVALUATES_S else "train"
    steps = 3 * int(now) + 1
    entries = 2 * int(begun) + (phase == "eval") + 1
    members = [b.keeper()]
    for one in range(ranks):
        pid = b.ROOT + one
        of_slot = {"words": steps, "phase": phase, "phase_entries": entries, "world_size": ranks}
        members.append(b.rank(pid, one, **of_slot))
        first = 100_000 + (int(begun) * ranks + one) * workers
        members += [b.member(first + i, "worker", rank=one, ppid=pid) for i in range(workers)]
    used = {"cpu_s": now, "io_bytes": int(now) << 20, "log_bytes": steps * 60}
    return b.sample(now, *members, **used)


def live(days: int, ranks: int, workers: int, run: RunDirectory) -> None:
    """A row after each day."""
    clock, policy, state = Clock(), Policy(), State()
    log = EventLog.open(run.events, spill_dir=None, clock=clock)
    trace = TraceFile(run.trace, beside=log.beside)
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    track, spent_s = tracks.new_track(0.0), time.process_time()
    launched = e.AttemptLaunched(
        pid=b.ROOT, start=b.ROOT + 1000, keeper_pid=b.KEEPER, keeper_start=b.KEEPER + 1000
    )
    started = msgspec.structs.replace(b.RUN_STARTED, run_id=run.run_id, run_dir=str(run.path))
    first = (e.PlanMade(plan=b.plan()), e.AttemptLaunching(token="t", plan=b.plan()), launched)
    for event in (started, *first):
        state = evolve(state, log.append(event, 1))
    while clock.now < days * DAY_S:
        clock.now += LOOK_S
        sample = look(clock.now, ranks, workers)
        track = tracks.advance(track, sample, policy.detection)
        judged = verdict(track, sample, policy.detection, elsewhere_quiet=True)
        seen = b.observation(sample, judged)
        while isinstance(action := decide(seen, state, policy, {}), Record):
            for event in action.events:
                state = evolve(state, log.append(event, 1))
        line = writer.line(sample, 1)
        if line is not None:
            trace.append(line)
        if clock.now % DAY_S < LOOK_S:
            time.sleep(1.0)  # the writer's thread has to catch up
            sizes = [sum(f.stat().st_size for f in run.path.glob(name)) / 2**20 for name in FILES]
            memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            now_s = time.process_time()
            taken_s, spent_s = now_s - spent_s, now_s
            cells = [clock.now / DAY_S, log.seq, *sizes, memory_mib, status_ms(run), taken_s]
            print(
                row_of(f"{cell:.0f}" if cell >= 10 else f"{cell:.2g}" for cell in cells), flush=True
            )
    log.close(60.0)
    trace.close()
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([WTRAIN, "replay", str(run.trace)], capture_output=True, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"\nreplay of the trace that is kept: CPU {used.ru_utime - before.ru_utime:.0f} s, "
        f"{time.monotonic() - began:.0f} s by the clock, at most {used.ru_maxrss / 1024:.0f} MiB"
    )


FILES = ("events.jsonl", "trace.jsonl*")


def status_ms(run: RunDirectory) -> float:
    """Processor time, the median of five."""
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [WTRAIN, "status", str(run.path)]
        subprocess.run(command, env=bare_environment(), capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--workers", type=int, default=7, help="of each rank")
    options = parser.parse_args()
    print(f"{machine()}; {options.ranks} ranks with {options.workers} workers each\n")
    print(table_of(HEADER, ()))
    with tempfile.TemporaryDirectory() as place:
        live(options.days, options.ranks, options.workers, create(Path(place), "week", 1e9))


if __name__ == "__main__":
    main()
