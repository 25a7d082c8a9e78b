"""One attempt from the first byte of output to the last: what a keeper does, in order."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time

from watchdog_train.keeper.messages import Record, Wake
from watchdog_train.keeper.ranks import RankStreams
from watchdog_train.keeper.streams import Stream, open_streams, start_pump
from watchdog_train.keeper.training import Training, prepare, stat_of

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from typing import Any

SETTLE_S = 0.5  # how long an exit status waits for the output written before it
SETTLE_STEP_S = 0.004
DRAIN_LOOK_S = 0.2


def main(path: str) -> int:
    """Carry out the orders in the file; paths in them are relative to its folder."""
    folder, name = os.path.split(os.path.abspath(path))
    # The run directory as our starter holds it: the path may lead elsewhere by now.
    for root, held in json.loads(os.environ.pop("WTRAIN_HELD", "{}")).items():
        if sys.platform != "win32" and folder.startswith(root + os.sep):
            os.fchdir(held)
            folder = os.path.relpath(folder, root)
        os.close(held)
    os.chdir(folder)
    with open(name, encoding="utf-8") as file:
        orders = json.load(file)
    prepare(adopt_orphans=orders.get("adopt_orphans", True))
    return keep(orders) if orders["argv"] is not None else drain(orders)


def drain(orders: dict[str, Any]) -> int:
    """The previous keeper has died: read the output that the training still writes.

    SIGTERM means, as for a keeper, that remaining processes stay.
    """
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    pump = start_pump(orders, orders["fds"], Wake(None))
    ranks = RankStreams(orders.get("ranks"))
    ranks.start(pump)
    streams = tuple(pump.values())
    while not told and not all(stream.ended for stream in streams):
        time.sleep(DRAIN_LOOK_S)
    for stream in streams:
        stream.file.gate.is_over = True
    _end(ranks, streams)
    _write_the_rest(ranks, streams, orders["linger_s"])
    return 0


def keep(orders: dict[str, Any]) -> int:
    """Start the training, pump until it and all its descendants are gone; our exit code."""
    ended = Record("exit.json", "exit.json.tmp")
    amended = Record("exit.json", "exit.json.tmp2")
    wake_fd = orders["wake_fd"]
    reads, child_fds = open_streams(orders)
    ranks = RankStreams(orders.get("ranks"))
    others = (*orders.get("gates", {}).values(), *(() if wake_fd is None else (wake_fd,)))
    for fd in {*reads.values(), *child_fds.values(), *ranks.fds, *others}:
        os.set_inheritable(fd, False)
    ranks.announce(child_fds)
    wake = Wake(wake_fd)
    started = _start(orders, child_fds)
    if started is None:
        ended.discard()
        amended.discard()
        wake.ring()
        return 1
    training, known, running = started
    pump = start_pump(orders, reads, wake)
    ranks.start(pump)
    streams = tuple(pump.values())
    # A writer that we keep open would hide the end of the stream, a reader the end of a pipeline.
    for fd in {*child_fds.values(), *orders["inherited_fds"]} - {0, 1, 2}:
        os.close(fd)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    running.fill({**known, "runs": True})
    wake.ring()

    code = training.wait()
    _settle(ranks, streams)
    how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
    outcome = {"pid": known["pid"], "start": known["start"], **how, "ended_at": time.time()}
    dropped_bytes = sum(stream.dropped_bytes for stream in streams)
    wake.tell_exit(**how)  # before the disk is asked, which may never answer
    ended.fill({**outcome, "dropped_bytes": dropped_bytes})
    wake.ring()
    ended.make_durable()

    _read_the_rest(training, ranks, streams)
    ranks.close_writes()
    _write_the_rest(ranks, streams, orders["linger_s"])
    lost_bytes = sum(stream.lost_bytes() for stream in streams)
    if lost_bytes > dropped_bytes:
        amended.fill({**outcome, "dropped_bytes": lost_bytes}, patience_s=0.0)
    amended.discard()
    return 0


def _start(
    orders: dict[str, Any], child_fds: dict[str, int]
) -> tuple[Training, dict[str, Any], Record] | None:
    """The training, its identity, and the record that it runs; None: it cannot be started."""
    forked = Record("keeper.json", "keeper.json.tmp2")
    running = Record("keeper.json", "keeper.json.tmp")
    me = os.getpid()
    known: dict[str, Any] = {"keeper_pid": me, "keeper_start": _start_of(me, orders)}
    known.update(started_at=time.time(), pid=None, start=None, error=None, runs=False)

    def announce(pid: int) -> None:
        """Nothing runs that is not on record: the record is how it is found after our death."""
        known.update(pid=pid, start=_start_of(pid, orders))
        if not forked.fill(known, patience_s=0.0):
            raise OSError(errno.EIO, "cannot be recorded", forked.name)

    # See watchdog_train.client.roles.is_stranger.
    if known["keeper_start"] is not None and orders.get("adopt_orphans", True):
        job = os.environ.get("SLURM_JOB_ID", "")
        job = job if job.isascii() and job.isdigit() else "0"
        os.environ["WTRAIN_KEEPER"] = f"{me} {known['keeper_start']} {job}"
    try:
        training = Training(orders, child_fds, announce)
    except OSError as error:
        failure = {"errno": error.errno, "message": f"{error.filename}: {error.strerror}"[:512]}
        running.fill({**known, "pid": None, "start": None, "error": failure})
        forked.discard()
        return None
    return training, known, running


def _read_the_rest(training: Training, ranks: RankStreams, streams: tuple[Stream, ...]) -> None:
    """Until the last writer is gone; processes that stay may hold the other ends open."""
    everybody_gone = training.wait_for_others()
    for stream in streams:
        stream.file.gate.is_over = True
    if not everybody_gone:
        for stream in streams:
            stream.wait_read()
    elif training.some_stay:
        _end(ranks, streams)


def _end(ranks: RankStreams, streams: tuple[Stream, ...]) -> None:
    _settle(ranks, streams)
    ranks.end()
    for stream in streams:
        stream.end()


def _write_the_rest(ranks: RankStreams, streams: tuple[Stream, ...], linger_s: float) -> None:
    finish_by = time.monotonic() + linger_s
    ranks.finish(linger_s)
    for stream in streams:
        stream.writer.join(max(finish_by - time.monotonic(), 0.0))


def _settle(ranks: RankStreams, streams: tuple[Stream, ...]) -> None:
    settled_by = time.monotonic() + SETTLE_S
    while time.monotonic() < settled_by:
        if ranks.settled() and all(stream.settled() for stream in streams):
            return
        time.sleep(SETTLE_STEP_S)


def _start_of(pid: int, orders: dict[str, Any]) -> int | None:
    known = stat_of(pid) if orders["tell_start"] else None
    return known[2] if known else None
