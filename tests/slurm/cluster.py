"""A Slurm of three nodes on this machine, in a directory of its own: munged, slurmctld, slurmd.

Each slurmd has a host name of its own (a UTS namespace) and a hosts file that knows all, so that
what runs on the nodes sees several machines. They share the file system, the pids and the network
of this one. Nothing outside the directory is written, and only children of ours are ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NAME = "wtraintest"
"""Of the cluster: a test that finds another one must not submit anything to it."""
NODES = ("n1", "n2", "n3")
"""Jobs get the first two; the last is for a job that must not have one of them again."""
PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare")
CONFIGURED = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf")
FREEZER = Path("/sys/fs/cgroup/freezer")
"""Of cgroups v1. With it a step ends as on most clusters: nothing of it outlives its tasks."""
POLICY = Path("/usr/sbin/policy-rc.d")
INSTALL_S = 300.0
START_S = 40.0
END_S = 20.0

CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credentials of its first start have expired: 120 s if not said.
AuthInfo=socket={place}/munge,cred_expire=10
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
ProctrackType=proctrack/{tracked_by}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
MinJobAge=3600
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class CannotError(Exception):
    """Why there can be no such Slurm here."""


def refusal(environment: Mapping[str, str]) -> str | None:
    """Why none may be started here; None where nothing speaks against it."""
    if os.geteuid() != 0:
        return "it has to be root: Slurm's nodes get host names of their own"
    if environment.get("SLURM_CONF") or environment.get("SLURM_JOB_ID"):
        return "SLURM_CONF or SLURM_JOB_ID is set: this belongs to a Slurm already"
    for path in CONFIGURED:
        if os.path.lexists(path):
            return f"{path} is there: a Slurm is configured on this machine"
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (entry / "comm").read_text().strip()
            if name in ("slurmctld", "slurmd", "slurmdbd"):
                return f"{name} runs already (pid {entry.name})"
    return None


def missing_programs() -> list[str]:
    """Programs that are needed and not there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def install() -> None:
    """Debian's packages, from the configured sources; none of their services is started.

    Raises:
        CannotError: there is no apt, or it failed.
    """
    if shutil.which("apt-get") is None:
        raise CannotError(f"{', '.join(missing_programs())} not found, and no apt-get to install")
    with _no_services():
        _apt("update", "-q")
        _apt("install", "-q", "-y", "--no-install-recommends", *PACKAGES)


def _apt(*words: str) -> None:
    try:
        done = subprocess.run(
            # Without the options a machine without a network tries for minutes.
            ["apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20", *words],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotError(f"apt-get {words[0]} took more than {INSTALL_S:.0f} s") from error
    if done.returncode != 0:
        raise CannotError(f"apt-get {words[0]} failed:\n{done.stdout[-1500:]}")


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Debian starts what it installs, unless this file says no."""
    try:
        with POLICY.open("x") as policy:
            policy.write("#!/bin/sh\nexit 101\n")
    except OSError:  # somebody has said already what may start
        yield
        return
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)


@contextlib.contextmanager
def running() -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find a cluster; it is gone afterwards.

    Raises:
        CannotError: it does not come up; the message has the ends of its logs.
    """
    # Short: the sockets of Slurm lie below it, and a socket's path has 107 bytes.
    place = Path(tempfile.mkdtemp(prefix="wtrain-slurm-", dir="/tmp"))
    place.chmod(0o755)
    cluster = _Cluster(place)
    try:
        cluster.start()
        yield cluster.environment
    finally:
        cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


class _Cluster:
    def __init__(self, place: Path) -> None:
        self.place = place
        conf = place / "slurm.conf"
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
            "SLURM_CONF": str(conf),
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        port, *ports = _free_ports(1 + len(NODES))
        nodes = [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={its} CPUs=2"
            for name, its in zip(NODES, ports, strict=True)
        ]
        text = CONF.format(
            name=NAME,
            host=socket.gethostname(),
            place=place,
            port=port,
            nodes="\n".join(nodes),
            tracked_by="cgroup" if ends_with_its_tasks() else "linuxproc",
        )
        conf.write_text(text)
        (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (place / "munge.key").write_bytes(secrets.token_bytes(128))
        (place / "munge.key").chmod(0o600)
        names = " ".join((socket.gethostname(), *NODES))
        (place / "hosts").write_text(f"127.0.0.1 localhost {names}\n")
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (place / name).mkdir()

    def start(self) -> None:
        place = self.place
        files = ("socket", "munge"), ("key-file", "munge.key"), ("pid-file", "munged.pid")
        seed, log = ("seed-file", "munged.seed"), ("log-file", "munged.log")
        words = [f"--{option}={place / name}" for option, name in (*files, seed, log)]
        # --force: it warns of a directory that others may read, which Slurm's users have to.
        self._daemon("munged", ["munged", "--foreground", "--force", *words])
        self._wait((place / "munge").is_socket, "munged answers")
        self._daemon("slurmctld", ["slurmctld", "-D", "-c"])
        for node in NODES:
            own = 'mount --bind "$1/hosts" /etc/hosts && hostname "$2" && exec slurmd -D -N "$2"'
            prefix = ["unshare", "--uts", "--mount", "sh", "-c", own, "sh"]
            self._daemon(f"slurmd.{node}", [*prefix, str(place), node])
        self._wait(self._is_up, "all nodes are idle")

    def _daemon(self, name: str, words: Sequence[str]) -> None:
        with (self.place / f"{name}.out").open("wb") as said:
            self._daemons[name] = subprocess.Popen(
                words,
                env=self.environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_up(self) -> bool:
        return self._asked("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES)

    def _asked(self, *words: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                words,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
            return done.stdout
        return ""

    def _wait(self, there: object, what: str) -> None:
        assert callable(there)
        until = time.monotonic() + START_S
        while not there():
            ended = [name for name, one in self._daemons.items() if one.poll() is not None]
            if ended or time.monotonic() > until:
                why = f"{', '.join(ended)} ended" if ended else f"not within {START_S:.0f} s"
                logs = [
                    f"--- {path.name}\n{path.read_text('utf-8', 'replace')[-1500:]}"
                    for path in sorted(self.place.glob("*.out"))
                ]
                raise CannotError(f"Slurm does not start ({what}): {why}\n" + "\n".join(logs))
            time.sleep(0.1)

    def stop(self) -> None:
        """End jobs, then daemons; nothing is waited for without a limit."""
        if "slurmctld" in self._daemons:
            self._asked("scancel", "--user=root")
            until = time.monotonic() + END_S
            while time.monotonic() < until and self._asked("squeue", "-h").strip():
                time.sleep(0.2)
        for kind in (signal.SIGTERM, signal.SIGKILL):
            living = [one for one in self._daemons.values() if one.poll() is None]
            for one in living:
                one.send_signal(kind)
            for one in living:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(END_S / 2)
        for node in NODES:
            folder = FREEZER / f"slurm_{node}"
            below = sorted(folder.glob("**/"), reverse=True)
            for each in below if folder.is_dir() else ():
                with contextlib.suppress(OSError):
                    each.rmdir()


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in held]


def ends_with_its_tasks() -> bool:
    """Whether this Slurm ends what is left of a node's tasks when they have ended."""
    return os.access(FREEZER, os.W_OK)


def found() -> str | None:
    """Why the tests that need this very cluster cannot run; None where it answers."""
    if not os.environ.get("SLURM_CONF"):
        return "no Slurm: scripts/test-slurm starts one and runs these tests"
    try:
        done = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Slurm does not answer: {error}"
    words = [line.split("=", 1) for line in done.stdout.splitlines() if "=" in line]
    name = {key.strip(): value.strip() for key, value in words}.get("ClusterName")
    if name != NAME:
        return f"the Slurm here is not the one of scripts/test-slurm ({name}): nothing is submitted"
    return None
