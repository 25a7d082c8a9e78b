"""Who belongs to the attempt: a continuous record of (pid, start), so that orphans stay known.

Membership is ancestry seen while it existed; once recorded it outlives the parent. Where no keeper
adopts orphans (it is dead, or the system has no subreaper), the attempt's token in an environment
with the same scope counts, too: but not of what a process outside of the attempt has started.
Nothing here sends a signal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from signal import SIGTERM

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.model import (
    Member,
    MemberSample,
    ProcessId,
    ProcessRow,
    Role,
    Sample,
    SlotReading,
)
from watchdog_train.core.starting.command_line import starts_ranks
from watchdog_train.supervisor.hands.accounts import Accounts
from watchdog_train.supervisor.hands.kinship import Kinship, parents
from watchdog_train.system.protocol import ProcessSystem

JOB = "SLURM_JOB_ID"
ORPHANED_S = 2.0
MOST_DEAD = 10_000


class KeeperLife:
    def __init__(self) -> None:
        self.identity: ProcessId | None = None
        self._died_at: float | None = None

    @property
    def pid(self) -> int:
        """0, which is no process, while no keeper is known."""
        return self.identity.pid if self.identity is not None else 0

    def is_dead(self, rows: Mapping[int, ProcessRow]) -> bool:
        """Also False while no keeper is known."""
        if self.identity is None:
            return False
        row = rows.get(self.pid)
        return row is None or row.identity != self.identity or row.state in ("Z", "X")

    def is_alive(self, rows: Mapping[int, ProcessRow], now: float) -> bool:
        """Until its children have another parent, as the kernel gives them one.

        A leader is a zombie before its last thread has ended, and has its children until then. On
        Windows they keep their dead parent: it is not waited for.
        """
        if self.identity is None or not self.is_dead(rows):
            return self.identity is not None
        self._died_at = self._died_at or now
        is_parent = any(row.ppid == self.pid for row in rows.values())
        return is_parent and now - self._died_at <= ORPHANED_S


TOKEN_SCAN_EVERY_S = 30.0
SETTLED_S = 0.5
"""Age at which a process has exec'd its program; there is one sample after it, too."""
_HELPERS = {
    "multiprocessing.resource_tracker": "resource_tracker",
    "torch_shm_manager": "torch_shm_manager",
    "multiprocessing.forkserver": "forkserver",
}


class ProcessTree:
    def __init__(
        self,
        system: ProcessSystem,
        *,
        token: str,
        scope: str,
        helpers: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        """`helpers`: pids of the supervisor's own helper children."""
        self._system = system
        self._helpers = helpers
        self._token = token
        self._scope = scope
        self._members: dict[ProcessId, Member] = {}
        self._by_pid: dict[int, Member] = {}
        """The same, while they are sampled: an exited one frees its pid."""
        self._dead: dict[ProcessId, None] = {}
        """The newest MOST_DEAD exited members: restarted workers of a week may be 100,000s."""
        self._accounts = Accounts()
        self._keeper = KeeperLife()
        self._births = self._deaths = 0
        self._empty_looks = 0
        self._scanned_at = 0.0
        self._new: dict[ProcessId, float] = {}
        """When each was recorded: between fork and exec its description is not final."""
        self._now = 0.0
        self._strangers: set[ProcessId] = set()
        """Without our token in the environment, which stays as it began; or with one handed on."""
        self._before: Mapping[int, ProcessRow] = {}
        self.rows: Mapping[int, ProcessRow] = {}
        """The newest snapshot, for reaping adopted orphans."""

    def seed(self, members: Iterable[Member]) -> None:
        """Record members that are known from elsewhere: a launch, or a census in the log."""
        for member in members:
            if member.identity not in self._dead:
                self._members.setdefault(member.identity, member)
            if member.role == "keeper":
                self._keeper.identity = member.identity

    def members(self) -> tuple[Member, ...]:
        """Recorded members that were not seen dead."""
        return tuple(self._members.values())

    def identities_ever(self) -> frozenset[ProcessId]:
        return frozenset((*self._members, *self._dead))

    def look(
        self,
        slots: Mapping[int, SlotReading],
        *,
        now: float,
        thorough: bool = False,
        left: frozenset[ProcessId] = frozenset(),
    ) -> Sample:
        """Update the record and sample it; traffic and output are not in the sample.

        `thorough`: search all processes for our token, too, as twice a minute.
        Members in `left` are not to be killed: their exit is not waited for.
        """
        self._now = now
        scans = thorough or now - self._scanned_at >= TOKEN_SCAN_EVERY_S
        rows = self._system.snapshot(tuple(self._members), full=scans)
        self._add_descendants(rows)
        if scans:
            self._scanned_at = now
            known = len(self._members)
            self._add_by_token(rows)
            self._add_inherited(rows)
            if len(self._members) > known:
                self._add_descendants(rows)
        self._before, self.rows = self.rows, rows
        for identity, born_at in list(self._new.items()):
            if now - born_at > SETTLED_S or identity not in self._members:
                del self._new[identity]
            if identity in self._members and now > born_at:
                self._describe_again(identity, rows.get(identity.pid))
        samples = self._sample(rows, slots)
        alive = [s for s in samples if s.member.role != "keeper" and s.state not in ("Z", "X")]
        if any(one.member.identity not in left for one in alive):
            self._empty_looks = 0
        elif thorough:
            self._empty_looks += 1
        return Sample(
            at=now,
            members=samples,
            cpu_s=self._accounts.cpu_s if self._accounts.cpu_known else None,
            io_bytes=self._accounts.io_bytes if self._accounts.io_known else None,
            tcp_bytes=None,
            log_bytes=0,
            births=self._births,
            deaths=self._deaths,
            empty_looks=self._empty_looks,
            keeper_alive=self._keeper.is_alive(rows, now),
        )

    def _add_descendants(self, rows: Mapping[int, ProcessRow]) -> None:
        living = {
            member.pid: member
            for identity, member in self._members.items()
            if identity.pid in rows and rows[identity.pid].identity == identity
        }
        # A child never started before its parent, so one pass in order of age finds grandchildren.
        for row in sorted(rows.values(), key=lambda row: (row.start, row.pid)):
            if row.ppid not in living or row.pid in living or row.pid == os.getpid():
                continue
            if row.identity in self._dead:
                continue
            living[row.pid] = self._add(row)

    def _add(self, row: ProcessRow) -> Member:
        role, name = self._describe(row)
        member = Member(pid=row.pid, start=row.start, role=role, ppid=row.ppid, name=name)
        self._members[row.identity] = member
        self._new[row.identity] = self._now
        self._births += 1
        return member

    def _describe_again(self, identity: ProcessId, row: ProcessRow | None) -> None:
        """After the first sample: an exec of the same program does not change its name."""
        member = self._members[identity]
        if row is not None and row.identity == identity and member.role in ("other", "launcher"):
            role, name = self._describe(row, member)
            self._members[identity] = msgspec.structs.replace(member, role=role, name=name)

    def _describe(self, row: ProcessRow, known: Member | None = None) -> tuple[Role, str]:
        words = self._system.command_line(row.pid) or ()
        if known is not None and not words:  # about to end, without memory: it is what it was
            return known.role, known.name
        command = " ".join(words)[:4096]
        name = next((short for long, short in _HELPERS.items() if long in command), row.name)
        return "launcher" if name == row.name and starts_ranks(words) else "other", name

    def _add_inherited(self, everybody: Mapping[int, ProcessRow]) -> None:
        """Orphans that we adopted because the keeper, their nearest subreaper, is dead.

        The kernel gives us only our descendants. No other way finds a process that left its family,
        has a cleared environment and lost its keeper before the first sample.
        """
        keeper = self._keeper.identity
        if keeper is None or not self._keeper.is_dead(everybody):
            return
        helpers, me, names = self._helpers(), os.getpid(), (layout.ENV_TOKEN,)
        for row in everybody.values():
            if row.ppid != me or row.pid in helpers or row.state in ("Z", "X"):
                continue
            if row.start < keeper.start or row.identity in self._members:
                continue
            if row.identity in self._dead:
                continue
            # A supervisor that we have started for another run may die, and leave us its training.
            token = (self._system.environment(row.pid, names) or {}).get(layout.ENV_TOKEN)
            if token in (None, self._token):
                self._add(row)

    def _add_by_token(self, everybody: Mapping[int, ProcessRow]) -> None:
        names = (layout.ENV_TOKEN, layout.ENV_SCOPE)
        known, self._strangers = self._strangers, set()
        for pid, row in everybody.items():
            if pid == os.getpid() or row.identity in self._members or row.state in ("Z", "X"):
                continue
            environment = {} if row.identity in known else self._system.environment(pid, names)
            if environment is None:
                continue
            if (
                environment.get(layout.ENV_TOKEN) == self._token
                and environment.get(layout.ENV_SCOPE) == self._scope
                and not self._is_older(row)
                and self._is_this_users(pid)
                and not self._is_handed_on(row, everybody, known | self._strangers)
            ):
                self._add(row)
            else:
                self._strangers.add(row.identity)

    def _is_handed_on(
        self,
        row: ProcessRow,
        everybody: Mapping[int, ProcessRow],
        strangers: Collection[ProcessId],
    ) -> bool:
        """Whether a process outside of the attempt, such as a spooler, has started it for a member.

        srun lets slurmstepd start the tasks of its own job; what sbatch has started is another job.
        """
        keeper = self._keeper.identity
        if keeper is None:
            return False
        adopts = self._system.name == "linux" and not self._keeper.is_dead(everybody)
        top = row
        for above in parents(row, everybody):
            if above.pid in (1, os.getpid()) or above.name == "systemd":
                return adopts
            if above.name == layout.STEP_DAEMON:
                return not self._is_step(above, row)
            if above.start < keeper.start or above.identity in strangers:
                return True
            top = above
        return adopts and top.ppid == 1  # which may be hidden from us

    def _is_step(self, daemon: ProcessRow, task: ProcessRow) -> bool:
        """Whether slurmstepd has started a process on behalf of an srun of the attempt."""
        jobs = {
            (self._system.environment(pid, (JOB,)) or {}).get(JOB)
            for pid in (self._keeper.pid, task.pid)
        }
        asked = (one.name == "srun" and one.start <= daemon.start for one in self.members())
        return any(asked) and len(jobs - {None}) <= 1

    def _is_older(self, row: ProcessRow) -> bool:
        """Than the attempt: then its environment proves nothing."""
        keeper = self._keeper.identity
        return keeper is not None and row.start < keeper.start

    def _is_this_users(self, pid: int) -> bool:
        """Root can read every environment; unknown where a system has no user ids."""
        theirs, mine = self._system.user_id(pid), self._system.user_id(os.getpid())
        return None in (theirs, mine) or theirs == mine

    def _sample(
        self, rows: Mapping[int, ProcessRow], slots: Mapping[int, SlotReading]
    ) -> tuple[MemberSample, ...]:
        samples = []
        gone = [
            identity
            for identity in self._members
            if (row := rows.get(identity.pid)) is None or row.identity != identity
        ]
        for identity in gone:
            self._bury(identity)
        self._accounts.begin(gone)
        self._by_pid = {member.pid: member for member in self._members.values()}
        kin = Kinship(self._by_pid, slots)
        wrappers = kin.wrappers()
        for identity, member in list(self._members.items()):
            row = rows[identity.pid]
            slot = slots.get(identity.pid)
            if slot is not None and slot.start not in (0, identity.start):
                slot = None
            known = self._identify(member, row, slot, kin)
            self._members[identity] = self._by_pid[identity.pid] = known
            if known.role != "keeper":
                self._accounts.count(row)
            asks = slot is not None or member.ppid == self._keeper.pid
            before = self._before.get(identity.pid)
            idle = before is not None and before.cpu_s == row.cpu_s and row.state == "S"
            held, state = None, row.state
            if state in ("D", "T", "t") or (idle and known.role != "worker"):
                held = self._system.held(identity.pid, state)
                state = "t" if held and held.traced else "T" if held else state
            samples.append(
                MemberSample(
                    member=known,
                    state="S" if state == "t" and held is None else state,
                    cpu_s=row.cpu_s,
                    slot=slot,
                    waits_for_input=self._system.waits_for_input(identity.pid) if asks else None,
                    held=held,
                    handles_sigterm=self._system.handles_signal(identity.pid, SIGTERM)
                    if identity in wrappers and slot is None
                    else None,
                )
            )
        return tuple(samples)

    def _bury(self, identity: ProcessId) -> None:
        member = self._members.pop(identity)
        if self._by_pid.get(identity.pid) is member:
            del self._by_pid[identity.pid]
        self._dead[identity] = None
        if len(self._dead) > MOST_DEAD:
            del self._dead[next(iter(self._dead))]
        self._deaths += 1

    def _identify(
        self, member: Member, row: ProcessRow, slot: SlotReading | None, kin: Kinship
    ) -> Member:
        """Fill in what a slot says, and notice an exec since the last sample."""
        if member.role == "keeper":
            return member
        role: Role = member.role
        name = member.name
        if slot is None and member.role == "other" and row.name != member.name[:15]:
            role, name = self._describe(row, member)
        rank, local_rank, worker = member.rank, member.local_rank, member.worker
        if slot is not None and slot.role != "unknown":
            role = slot.role
            rank, local_rank, worker = slot.rank, slot.local_rank, slot.worker
            if member.pid in kin.spawning:
                role, rank, local_rank = "launcher", None, None
            if role == "other" and slot.trains and kin.is_orphan(member):
                role = "rank"  # a script that has daemonized: a fork of the first process
            if role == "rank" and kin.inside_a_rank(member, slot):
                role, rank = "other", None
            if role in ("worker", "other") and rank is None:
                rank = kin.rank_above(member)
        if role == "rank" and rank is None:
            rank = 0
        return Member(
            pid=member.pid,
            start=member.start,
            role=role,
            rank=rank,
            local_rank=local_rank,
            worker=worker,
            ppid=row.ppid,
            name=name,
        )
