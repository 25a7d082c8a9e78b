"""Who is a rank, a worker or a launcher: what slots say, corrected by who has started whom."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.client import layout
from watchdog_train.core.model import Member, ProcessId, ProcessRow, SlotReading
from watchdog_train.supervisor.hands.accounts import Accounts
from watchdog_train.supervisor.hands.tree import ProcessTree
from watchdog_train.system.protocol import ProcessSystem


def row(
    pid: int,
    ppid: int,
    cpu_s: float | None = 0.0,
    reaped_s: float = 0.0,
    *,
    io: int = 0,
    start: int = 1000,
) -> ProcessRow:
    return ProcessRow(
        pid=pid,
        start=pid + start,
        ppid=ppid,
        state="S",
        cpu_s=cpu_s,
        reaped_cpu_s=reaped_s,
        io_bytes=io,
        name="python",
    )


class Processes:
    """A machine on which nothing happens; `parents` is pid -> ppid."""

    name = "linux"

    def __init__(self, parents: Mapping[int, int]) -> None:
        self.rows = {pid: row(pid, ppid) for pid, ppid in parents.items()}
        self.others: dict[int, ProcessRow] = {}
        self.environments: dict[int, dict[str, str]] = {}
        self.command_lines: dict[int, tuple[str, ...]] = {}
        self.asked: list[int] = []

    def snapshot(
        self, known: Iterable[ProcessId] = (), *, full: bool = False
    ) -> Mapping[int, ProcessRow]:
        return {**self.rows, **self.others} if full else self.rows

    def command_line(self, pid: int) -> tuple[str, ...]:
        return self.command_lines.get(pid, ("python", "train.py"))

    def environment(self, pid: int, names: Iterable[str]) -> dict[str, str] | None:
        self.asked.append(pid)
        return self.environments.get(pid)

    def user_id(self, pid: int) -> int:
        return 1000

    held = ProcessSystem.held

    def waits_for_input(self, pid: int) -> None:
        return None

    def handles_signal(self, pid: int, signal_number: int) -> bool:
        return pid % 2 == 0


def tree_of(
    machine: Processes, keeper_of: int = 0, helpers: frozenset[int] = frozenset()
) -> ProcessTree:
    """A tree with the root 10, and with the keeper 9 if that one has a parent."""
    tree = ProcessTree(machine, token="t", scope="s", helpers=lambda: helpers)  # type: ignore[arg-type]
    if keeper_of:
        tree.seed((Member(pid=9, start=1009, role="keeper", ppid=keeper_of),))
    tree.seed((Member(pid=10, start=1010, role="other", ppid=9),))
    return tree


def pids(tree: ProcessTree) -> set[int]:
    return {member.pid for member in tree.members()}


def roles(parents: Mapping[int, int], *slots: SlotReading) -> dict[int, tuple[str, int | None]]:
    """Role and rank by pid, of a tree whose root is 10."""
    look = tree_of(Processes(parents)).look({slot.pid: slot for slot in slots}, now=1.0)
    return {one.member.pid: (one.member.role, one.member.rank) for one in look.members}


def rank(pid: int, number: int, world: int | None, **more: Any) -> SlotReading:
    return b.slot(pid, rank=number, world_size=world, **more)


def other(pid: int, role: Any = "other", **more: Any) -> SlotReading:
    return b.slot(pid, role=role, rank=None, local_rank=None, world_size=None, **more)


LONE = rank(10, 0, None)
TREES = {
    "a plain training": ({10: 9}, [LONE], {10: ("rank", 0)}),
    "a helper script of a plain training": (
        {10: 9, 11: 10},
        [LONE, rank(11, 0, None)],
        {10: ("rank", 0), 11: ("other", 0)},
    ),
    "spawned, and not yet in a group": (
        {10: 9, 11: 10, 12: 10},
        [LONE, other(11), other(12)],
        {10: ("rank", 0), 11: ("other", 0), 12: ("other", 0)},
    ),
    "spawned ranks": (
        {10: 9, 11: 10, 12: 10},
        [LONE, rank(11, 0, 2), rank(12, 1, 2)],
        {10: ("launcher", None), 11: ("rank", 0), 12: ("rank", 1)},
    ),
    "spawned ranks with workers": (
        {10: 9, 11: 10, 12: 10, 13: 12, 14: 11},
        [LONE, rank(11, 0, 2), rank(12, 1, 2), other(13, "worker", worker=0), other(14)],
        {
            10: ("launcher", None),
            11: ("rank", 0),
            12: ("rank", 1),
            13: ("worker", 1),
            14: ("other", 0),
        },
    ),
    "one spawned rank, at its first step": (
        {10: 9, 11: 10},
        [LONE, rank(11, 0, 1, words=1)],
        {10: ("launcher", None), 11: ("rank", 0)},
    ),
    "a library's command that starts the script": (
        {10: 9, 11: 10, 12: 11},
        [LONE, rank(11, 0, None, words=1), other(12, "worker", worker=0)],
        {10: ("launcher", None), 11: ("rank", 0), 12: ("worker", 0)},
    ),
    "ranks behind a fork server": (
        {10: 9, 11: 10, 12: 11, 13: 11},
        [LONE, rank(12, 0, 2), rank(13, 1, 2)],
        {10: ("launcher", None), 11: ("other", None), 12: ("rank", 0), 13: ("rank", 1)},
    ),
    "a training with a group of helpers": (
        {10: 9, 11: 10, 12: 10},
        [rank(10, 0, None, words=3), rank(11, 0, 2), rank(12, 1, 2)],
        {10: ("rank", 0), 11: ("other", 0), 12: ("other", 0)},
    ),
    "rank 0 has started rank 1": (
        {10: 9, 11: 10},
        [rank(10, 0, 2), rank(11, 1, 2)],
        {10: ("rank", 0), 11: ("rank", 1)},
    ),
    "a helper script of a rank": (
        {10: 9, 11: 10, 12: 11},
        [other(10, "launcher"), rank(11, 1, 2), rank(12, 1, 2)],
        {10: ("launcher", None), 11: ("rank", 1), 12: ("other", 1)},
    ),
    "a helper of a rank with a group of its own": (
        {10: 9, 11: 10},
        [rank(10, 1, 2), rank(11, 0, 1, words=1)],
        {10: ("rank", 1), 11: ("other", 1)},
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_roles(name: str) -> None:
    """The parent of spawned ranks is a launcher; what a rank has started is no rank."""
    parents, slots, expected = TREES[name]
    assert roles(parents, *slots) == expected


def test_who_wraps_a_rank_is_asked_for_its_handler() -> None:
    """Shells above a rank, and nobody else: it is read at every look."""
    tree = tree_of(Processes({10: 9, 11: 10, 12: 11, 13: 12, 14: 10}))
    slots = {12: rank(12, 0, None)}
    for now in (1.0, 2.0):
        look = tree.look(slots, now=now)
    assert {one.member.pid: one.handles_sigterm for one in look.members} == {
        10: True, 11: False, 12: None, 13: None, 14: None,
    }  # fmt: skip


OURS = {layout.ENV_TOKEN: "t", layout.ENV_SCOPE: "s"}


def tree_beside(others: Mapping[int, dict[str, str] | None]) -> tuple[ProcessTree, Processes]:
    """A tree of one process, and what else runs, by pid with its environment."""
    machine = Processes({10: 9})
    machine.others = {pid: row(pid, 1) for pid in others}
    machine.environments = {pid: said for pid, said in others.items() if said is not None}
    return tree_of(machine), machine


JOB_7 = {**OURS, "SLURM_JOB_ID": "7"}
HANDED_ON = {
    "atd has started it": ({3: ("atd", 1), 50: ("sh", 3)}, {50: OURS}, "alive", set()),
    "its spooler has ended": ({50: ("python", 1)}, {50: OURS}, "alive", set()),
    "an orphan of a dead keeper": ({50: ("python", 1)}, {50: OURS}, "dead", {50}),
    "the user's systemd adopted it": (
        {3: ("systemd", 1), 50: ("python", 3)}, {50: OURS}, "dead", {50},
    ),
    "spooled, and the keeper died": ({3: ("tsp", 1), 50: ("sh", 3)}, {50: OURS}, "dead", set()),
    "by a spooler younger than the keeper": (
        {40: ("tsp", 1), 50: ("python", 40)}, {40: {}, 50: OURS}, "dead", set(),
    ),
    "no subreaper": ({50: ("python", 1)}, {50: OURS}, "portable", {50}),
    "spooled, no subreaper": ({3: ("tsp", 1), 50: ("sh", 3)}, {50: OURS}, "portable", set()),
    "parents that are hidden from us": ({50: ("python", 3)}, {50: OURS}, "alive", {50}),
    "a task of srun": (
        {3: ("slurmd", 1), 12: ("srun", 10), 45: ("slurmstepd", 3), 50: ("python", 45)},
        {9: JOB_7, 50: JOB_7}, "alive", {12, 50},
    ),
    "a job of sbatch beside a task of srun": (
        {3: ("slurmd", 1), 12: ("srun", 10), 45: ("slurmstepd", 3), 50: ("python", 45)},
        {9: {**OURS, "SLURM_JOB_ID": "6"}, 50: JOB_7}, "alive", {12},
    ),
    "a job of sbatch": ({3: ("slurmstepd", 1), 50: ("sh", 3)}, {50: JOB_7}, "alive", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", HANDED_ON)
def test_descent_decides_before_the_token(name: str) -> None:
    """What a process outside of the attempt has started with a member's environment is not ours."""
    processes, environments, keeper, expected = HANDED_ON[name]
    machine = Processes({9: os.getpid(), 10: 9, **{pid: up for pid, (_, up) in processes.items()}})
    for pid, (called, _) in processes.items():
        machine.rows[pid] = msgspec.structs.replace(machine.rows[pid], name=called)
    machine.environments = dict(environments)
    machine.name = "portable" if keeper == "portable" else "linux"
    if keeper == "dead":
        del machine.rows[9]
    tree = tree_of(machine, os.getpid())
    for now in (1.0, 2.0):
        look = tree.look({}, now=now, thorough=True)
    assert {one.member.pid for one in look.members} - {9, 10} == expected


def test_strangers_are_asked_once_for_the_token() -> None:
    """Their environment stays as it began; one that could not be read is asked again."""
    tree, machine = tree_beside({50: {}, 51: {**OURS, layout.ENV_SCOPE: "else"}, 52: None})
    for at in (1.0, 2.0, 3.0):
        tree.look({}, now=at, thorough=True)
    assert [machine.asked.count(pid) for pid in (50, 51, 52)] == [1, 1, 3]
    assert pids(tree) == {10}


def test_a_number_that_was_given_again_is_asked_anew() -> None:
    """The stranger has gone, and what has its pid now carries our token."""
    tree, machine = tree_beside({50: {}})
    tree.look({}, now=1.0, thorough=True)
    machine.others = {50: row(50, 1, start=2000)}
    machine.rows[50] = machine.others[50]
    machine.environments[50] = OURS
    tree.look({}, now=2.0, thorough=True)
    assert pids(tree) == {10, 50}


def test_ancestry_goes_by_who_lives_now() -> None:
    """The worker's parent has a number that another member of the tree had before."""
    machine = Processes({10: 9, 20: 10})
    tree = tree_of(machine)
    tree.look({}, now=1.0)
    machine.rows[20] = row(20, 10, start=2000)
    machine.rows[21] = row(21, 20, start=2000)
    slots = {20: rank(20, 3, 4, start=2020), 21: other(21, "worker", worker=1, start=2021)}
    look = tree.look(slots, now=2.0)
    roles = {one.member.pid: (one.member.role, one.member.rank) for one in look.members}
    assert roles == {10: ("other", None), 20: ("rank", 3), 21: ("worker", 3)}
    assert look.deaths == 1


def test_what_came_to_us_from_a_dead_keeper_is_of_the_training() -> None:
    """It left its family, its environment is cleared, and nobody has looked before: 13.

    Not ours: what we started for ourselves (14), what is older than the attempt (4), the dead (15),
    and everybody while the keeper lives, which inherits before us.
    """
    me = os.getpid()
    machine = Processes({10: 9, 9: me})
    tree = tree_of(machine, me, frozenset({14}))
    machine.others = {pid: row(pid, me) for pid in (4, 9, 13, 14)}
    machine.others[15] = msgspec.structs.replace(row(15, me), state="Z")
    tree.look({}, now=1.0, thorough=True)
    assert pids(tree) == {9, 10}
    del machine.others[9], machine.rows[9]
    machine.rows |= machine.others
    tree.look({}, now=2.0, thorough=True)
    assert pids(tree) == {10, 13}


@pytest.mark.parametrize("parents", ["change", "stay"])
def test_a_keeper_is_gone_when_its_children_have_another_parent(parents: str) -> None:
    """Who that is decides what is said of the exit code. Its leader dies before its threads."""
    me = os.getpid()
    system = Processes({9: me, 10: 9})
    tree = tree_of(system, me)
    assert tree.look({}, now=1.0).keeper_alive
    system.rows[9] = msgspec.structs.replace(system.rows[9], state="Z")
    assert tree.look({}, now=2.0).keeper_alive
    if parents == "stay":  # Windows
        del system.rows[9]
        assert tree.look({}, now=3.0).keeper_alive
        assert not tree.look({}, now=5.0).keeper_alive
        return
    system.rows = {10: row(10, me)}
    look = tree.look({}, now=3.0)
    assert not look.keeper_alive
    assert [one.member.ppid for one in look.members if one.member.pid == 10] == [me]


def test_a_helper_that_is_about_to_end_stays_one() -> None:
    """Its memory is gone before it is, and its command line with it; it may still clean up."""
    system = Processes({10: 9, 11: 10})
    system.command_lines[11] = ("python", "-c", "from multiprocessing.resource_tracker import main")
    tree = tree_of(system)

    def names(now: float) -> list[str | None]:
        return [one.member.name for one in tree.look({}, now=now).members if one.member.pid == 11]

    assert names(1.0) == ["resource_tracker"]
    system.command_lines[11] = ()
    assert names(1.1) == ["resource_tracker"]
    system.command_lines[11] = ("python", "another")
    assert names(1.2) == ["python"], "an exec is noticed"


def test_what_another_run_has_left_us_is_not_ours() -> None:
    """A supervisor that this one has started for another run dies, and its training comes to us."""
    me = os.getpid()
    system = Processes(dict.fromkeys((10, 11, 12, 13), me))
    system.others = dict(system.rows)
    system.environments = {11: {layout.ENV_TOKEN: "another"}, 12: {}}
    tree = tree_of(system, me, frozenset({13}))
    tree.look({}, now=1.0, thorough=True)
    assert pids(tree) == {10, 12}


def test_the_dead_are_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that starts its workers anew every quarter of an hour has thousands a day."""
    monkeypatch.setattr("watchdog_train.supervisor.hands.tree.MOST_DEAD", 3)
    machine = Processes({10: 9})
    tree = tree_of(machine)
    for number, pid in enumerate(range(11, 16)):
        machine.rows[pid] = row(pid, 10)
        tree.look({}, now=2.0 * number)
        del machine.rows[pid]
        tree.look({}, now=2.0 * number + 1.0)
    assert {one.pid for one in tree.identities_ever()} == {10, 13, 14, 15}


def look(accounts: Accounts, *rows: ProcessRow, gone: tuple[int, ...] = ()) -> float:
    accounts.begin(ProcessId(pid, pid + 1000) for pid in gone)
    for each in rows:
        accounts.count(each)
    return accounts.cpu_s


@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_ends_is_no_peak(late: bool) -> None:
    """Its time comes up in what its parent has reaped, now or in the next look, and counts once."""
    accounts = Accounts()
    assert look(accounts, row(10, 9, 1.0), row(11, 10, 500.0, io=70)) == 501.0
    first = row(10, 9, 1.0, 0.0 if late else 500.4)
    assert look(accounts, first, gone=(11,)) == pytest.approx(501.0 if late else 501.4)
    assert look(accounts, row(10, 9, 1.0, 500.4)) == pytest.approx(501.4)
    assert accounts.io_bytes == 70


def test_what_nobody_saw_counts_when_it_is_reaped() -> None:
    """Children that lived between two looks: their work is life, whoever ended long before."""
    accounts = Accounts()
    look(accounts, row(10, 9, 1.0), row(11, 10, 500.0))
    # It was not waited for: this parent ignores SIGCHLD, and the kernel adds nothing.
    for _ in range(3):
        before = look(accounts, row(10, 9, 1.0), gone=(11,))
    assert look(accounts, row(10, 9, 1.0, 7.0)) == before + 7.0


def test_a_chain_of_ends_counts_once() -> None:
    accounts = Accounts()
    look(accounts, row(10, 9, 1.0), row(11, 10, 20.0), row(12, 11, 300.0))
    assert look(accounts, row(10, 9, 1.0), row(11, 10, 20.0, 300.0), gone=(12,)) == 321.0
    assert look(accounts, row(10, 9, 1.0, 320.0), gone=(11,)) == 321.0


def test_unknown_stays_unknown() -> None:
    """A total with a hole in it is none; bytes may be missing of who was never seen before."""
    accounts = Accounts()
    look(accounts, row(10, 9, None))
    assert not accounts.cpu_known
    assert accounts.io_known
