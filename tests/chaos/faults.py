"""The table of faults: what each is, when it may strike, and on which trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from signal import SIGKILL, SIGSTOP, SIGTERM

from tests.chaos import (
    faults_job,
    faults_machine,
    faults_people,
    faults_processes,
    faults_shapes,
    faults_storage,
    faults_strangers,
    faults_tools,
)
from tests.chaos.case import Case
from tests.chaos.moments import Where
from tests.chaos.trainings import Shape

ANY: tuple[Where, ...] = ("early", "launch", "train", "train", "ending", "hang", "hang", "crash")
RUNNING: tuple[Where, ...] = ("train", "train", "hang", "crash")
STEPS: tuple[Where, ...] = ("train",)
COLLECT: tuple[Where, ...] = ("collect",)


def _any(_: Shape) -> bool:
    return True


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    strike: Callable[[Case], None]
    """Do it; says in case.expected what may come of it."""
    where: tuple[Where, ...]
    applies: Callable[[Shape], bool] = _any
    prepare: Callable[[Case], None] | None = None
    """Before wtrain is started: a small disk, another PATH."""
    needs_isolation: bool = False


def _workers(shape: Shape) -> bool:
    return shape.workers > 0


def _single(shape: Shape) -> bool:
    return shape.tasks == 1


def _job(shape: Shape) -> bool:
    return shape.tasks > 1


def _launcher(shape: Shape) -> bool:
    return bool(shape.launcher)


def _plain(shape: Shape) -> bool:
    return not shape.launcher and shape.name != "trainer" and not _job(shape)


def _beats(shape: Shape) -> bool:
    return shape.name == "beats"


def _renames(shape: Shape) -> bool:
    return shape.name in ("beats", "loop", "fork", "spawn")


def _torch_script(shape: Shape) -> bool:
    return _plain(shape) and not shape.light


Isolated = partial(Fault, needs_isolation=True)
p, s, t, u = faults_processes, faults_storage, faults_tools, faults_people
j, m, o, x = faults_job, faults_machine, faults_strangers, faults_shapes
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("SIGKILL of a rank", p.send("rank", SIGKILL), RUNNING),
        Fault("SIGSTOP of a rank", p.stop("rank"), STEPS),
        Fault("SIGTERM of a rank", p.send("rank", SIGTERM), RUNNING),
        Fault("SIGKILL of a worker", p.send("worker", SIGKILL), STEPS, _workers),
        Fault("SIGSTOP of a worker", p.stop("worker"), STEPS, _workers),
        Fault("SIGTERM of a worker", p.send("worker", SIGTERM), STEPS, _workers),
        Fault("SIGKILL of the launcher", p.send("launcher", SIGKILL), STEPS, _launcher),
        Fault("SIGSTOP of the launcher", p.stop("launcher"), STEPS, _launcher),
        Fault("SIGTERM of the launcher", p.send("launcher", SIGTERM), STEPS, _launcher),
        Fault("SIGKILL of the supervisor", p.kill_supervisor, ANY),
        Fault("SIGKILL of two supervisors", p.kill_supervisor_twice, ANY),
        Fault("SIGSTOP of the supervisor", p.stop_supervisor, ANY),
        Fault("SIGTERM of the supervisor", p.term_supervisor, ANY),
        Fault("SIGHUP of the supervisor", p.hup_supervisor, ANY),
        Fault("SIGKILL of an agent", j.kill_agent, ANY, _job),
        Fault("SIGSTOP of an agent", j.stop_agent, ANY, _job),
        Fault("SIGTERM of an agent", j.term_agent, ANY, _job),
        Fault("SIGKILL of leader and agent", j.kill_leader_and_agent, ANY[1:], _job),
        # The exit code is lost with it, so the end of the training may count as a crash.
        Fault("SIGKILL of the keeper", p.send("keeper", SIGKILL), RUNNING),
        Fault("SIGKILL of a keeper that starts", p.kill_new_keeper, ("begin", "restart")),
        Fault("SIGSTOP of the keeper", p.stop_keeper, RUNNING),
        Fault("SIGTERM of the keeper", p.send("keeper", SIGTERM, harmless=True), RUNNING),
        Fault("SIGKILL of supervisor and keeper", p.kill_supervisor_and_keeper, STEPS),
        *(
            Fault(
                f"{number.name} of a collector", p.send("collector", number, harmless=True), COLLECT
            )
            for number in (SIGKILL, SIGSTOP, SIGTERM)
        ),
        Fault("SIGKILL of the scan of checkpoints", p.kill_scans, ("restart",)),
        Fault("SIGSTOP of the scan of checkpoints", p.stop_scan, ("restart",)),
        Isolated("everything that dies gets an heir to its pid", p.reuse_pids, STEPS),
        Isolated("full disk under the run directory", s.fill_runs, ANY[1:], prepare=s.small_runs),
        Isolated("run directory read-only", s.freeze_runs, ANY[1:], prepare=s.small_runs),
        Isolated("full disk under the checkpoints", s.fill_output, STEPS, _plain, s.small_output),
        Fault("slot cut to nothing", s.cut_slot, STEPS),
        Isolated("shared memory swept", s.sweep_memory, RUNNING),
        Fault("log torn in its last line, supervisor killed", s.tear_log, ANY[1:]),
        Fault("log cut while it is written", s.cut_log, RUNNING),
        Fault("half-written checkpoint", s.half_checkpoint, STEPS),
        Fault("newest checkpoint cut", s.cut_checkpoint, STEPS),
        Fault("newest checkpoint of no use", s.useless_checkpoints, STEPS, _plain),
        Fault("checkpoint ignored", s.ignore_checkpoint, STEPS, _torch_script, s.one_file),
        Fault("slow reader of the output", t.nothing, (*STEPS, "hang"), _plain, o.slow_reader),
        Fault("FIFO in place of a file", o.stand_in, (*ANY[1:], "restart")),
        Fault("daemons beside the training", t.nothing, RUNNING, prepare=o.daemons),
        Fault("files of another user", o.foreign, RUNNING, prepare=o.another_user),
        Isolated("py-spy hangs", t.nothing, COLLECT, prepare=t.slow_pyspy),
        Isolated("py-spy fails", t.nothing, COLLECT, prepare=t.failing_pyspy),
        Fault("port taken", t.take_port, STEPS, _launcher, t.fixed_port),
        Fault("clock a day ahead", t.clock_ahead, ANY[1:], prepare=t.clock),
        Fault("clock a day back", t.clock_back, ANY[1:], prepare=t.clock),
        Isolated(
            "run directory on a disk that hangs", m.hang_runs, RUNNING, prepare=m.hanging_runs
        ),
        Isolated("shared memory full", m.fill_memory, ANY[1:]),
        Fault("supervisor without descriptors", m.take_descriptors, RUNNING),
        Fault("everything asleep for a while", m.sleep, RUNNING),
        Fault("a second supervisor", u.second_supervisor, ANY[1:]),
        Fault("the same training again", u.same_training, RUNNING, _single),
        Fault("a stop", u.stop, ANY[1:]),
        Fault("a stop, now", u.stop_now, ANY[1:]),
        Fault("Ctrl-C", u.interrupt, ANY[1:]),
        Fault("Ctrl-C twice", u.interrupt_twice, ANY[1:]),
        Fault("a stop, and the supervisor is killed", u.stop_and_kill, ANY[1:]),
        Fault("evidence asked for", u.dump, RUNNING),
        Fault(
            "SIGKILL after a save was renamed",
            x.kill_after_rename,
            STEPS,
            _renames,
            x.renamed_saves,
        ),
        Fault("a crash after saves were renamed", x.crashed, ("crash",), _renames, x.renamed_saves),
        Fault("a frozen cgroup", x.freeze, (*STEPS, *STEPS, "hang"), _single, x.find_freezer),
        Fault("a training that daemonizes itself", t.nothing, STEPS, _beats, x.daemonizes),
        Fault("closed standard streams", t.nothing, RUNNING, _single, x.close_streams),
        Fault("a copy of the run directory", x.copy_run, ANY[2:], _single),
        Fault("a crash behind a shell", x.crashed, ("crash",), _beats, x.behind_a_shell),
        Fault("SIGKILL behind a shell", x.kill_behind_a_shell, STEPS, _beats, x.behind_a_shell),
    )
}
"""By name."""
