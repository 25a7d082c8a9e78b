"""Where the torchruns of all nodes meet: each attempt's plan has its own port and id. Pure.

Only in runs with `--nodes`. torchrun's options beat its variables: an option in the command is
repeated behind it with the new value, because torchrun uses the last of two.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Plan, Why
from watchdog_train.core.starting import command_line
from watchdog_train.core.starting.launchers import Across

C10D_PORT = 29400
STATIC_PORT = 29500
"""torchrun's own defaults (torch 2.13, distributed/run.py, elastic/rendezvous/c10d)."""
LAST_PORT = 65535
_VARIABLES = {
    "rdzv-backend": "PET_RDZV_BACKEND",
    "rdzv-endpoint": "PET_RDZV_ENDPOINT",
    "rdzv-id": "PET_RDZV_ID",
    "master-addr": "PET_MASTER_ADDR",
    "master-port": "PET_MASTER_PORT",
}


def across_of(state: State) -> Across | None:
    """This node's rendezvous options; None: no node of a job, or another backend."""
    task, launcher = state.task, state.launcher
    if task is None or task.kind != "node" or launcher is None:
        return None
    across = launcher.across
    return across if across is not None and across.backend in ("", "c10d", "static") else None


def first_port(across: Across) -> int | None:
    """The user's port for the first attempt; None if any port will do."""
    if across.backend == "":
        return None
    text = across.endpoint.rpartition(":")[2] if ":" in across.endpoint else ""
    if across.backend == "static" and not across.endpoint:
        return _port(across.master_port) or STATIC_PORT
    return _port(text) or (C10D_PORT if across.backend == "c10d" else STATIC_PORT)


def port_of(first: int, attempt: int) -> int:
    """Consecutive ports: a firewall may be open for some of them only."""
    port = first + attempt - 1
    return port if port <= LAST_PORT else first


def meet(plan: Plan, state: State, port: int | None) -> Plan:
    """The leader's plan with a new rendezvous; unchanged without one."""
    across = across_of(state)
    if across is None or port is None:
        return plan
    found = _rendezvous(across, state, plan.attempt, port)
    why = plan.why.plus(Why("nodes-meet", path=f"{_address(across, state)}:{port}"))
    argv = with_options(plan.argv, found)
    return msgspec.structs.replace(plan, why=why, argv=argv, env={**plan.env, **found})


def _rendezvous(across: Across, state: State, attempt: int, port: int) -> dict[str, str]:
    env = {"PET_RDZV_ID": f"{across.rdzv_id or state.run_id}-{attempt}"}
    address = _address(across, state)
    if across.backend == "static" and not across.endpoint:
        return env | {"PET_MASTER_ADDR": address, "PET_MASTER_PORT": str(port)}
    if across.backend == "":
        env["PET_RDZV_BACKEND"] = "c10d"
    return env | {"PET_RDZV_ENDPOINT": f"{address}:{port}"}


def _address(across: Across, state: State) -> str:
    """The user's address, else the leader's host: the scheduler's names resolve."""
    if across.backend == "":
        return state.host
    if across.endpoint:
        host, _, port = across.endpoint.rpartition(":")
        return host if host and _port(port) is not None else across.endpoint.rstrip(":")
    return across.master_addr or state.host


def with_options(argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
    """The command with its rendezvous options set to the plan's variables."""
    found = command_line.find(argv)
    if found is None:
        return argv
    options = [
        f"--{name}={env[variable]}"
        for name, variable in _VARIABLES.items()
        if variable in env and name in found.options
    ]
    changed = command_line.with_options(argv, options) if options else None
    return argv if changed is None else changed


def as_this_node(
    planned: tuple[str, ...], base: tuple[str, ...], own: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The leader's planned command with the rank of this node.

    None if the original commands differ in more than that.
    """
    blind = command_line.without_option
    if blind(base, "node-rank") != blind(own, "node-rank"):
        return None
    found = command_line.find(own)
    rank = found.options.get("node-rank") if found is not None else None
    bare = blind(planned, "node-rank")
    if rank is None:
        return bare
    return command_line.with_options(bare, (f"--node-rank={rank}",))


def _port(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        return None
    return int(text) if 0 < int(text) <= LAST_PORT else None
