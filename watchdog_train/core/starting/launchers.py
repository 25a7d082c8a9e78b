"""What a run knows of its launcher before it starts, and what an attempt sets for it. Pure.

torchrun takes the default of nearly every option from a variable PET_<OPTION>, so a command need
not be changed (torch 2.13, torch/distributed/argparse_util.py). `accelerate launch` hands torchrun
its own value of some options, over those variables; it has none for --standalone, --rdzv-id and
--local-addr (accelerate 1.15, accelerate/utils/launch.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from watchdog_train.core.model import Value
from watchdog_train.core.starting.command_line import OPTIONS, Family, Found
from watchdog_train.core.starting.jobs import JobTask

Settled = Literal["rendezvous", "id", "store", "logs", "streams"]

SHARED_STORE_OFF = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_ALL_SETTLED: tuple[Settled, ...] = ("rendezvous", "id", "logs", "streams")
"""Of a launcher with unknown options. Without "store": no user sets it, so wtrain still does."""
UNKNOWN_RANKS = 16
"""Highest expected value of `--nproc-per-node gpu` on one machine."""
MOST_RANK_STREAMS = 64
_STATIC = frozenset(("rdzv-endpoint", "master-addr", "master-port", "node-rank"))
"""An option of these without a backend means a static rendezvous."""
_PLACE_VARIABLES = ("PET_STANDALONE", "PET_RDZV_ENDPOINT")
_RENDEZVOUS = ("standalone", "rdzv-backend", "rdzv-endpoint", "master-addr", "master-port")


class Across(Value):
    """The user's rendezvous options for a torchrun of several nodes."""

    backend: str
    """Empty: the user left the rendezvous to wtrain."""
    endpoint: str = ""
    """host:port of --rdzv-endpoint."""
    master_addr: str = ""
    master_port: str = ""
    rdzv_id: str = ""
    node_rank: int | None = None
    nodes_said: bool = False
    """--nnodes is set."""
    conf: bool = False
    """--rdzv-conf is set."""


class Launcher(Value):
    family: Family
    nodes: int | None
    """Upper limit; None if the command does not show it."""
    processes: int | None
    """On this node; None if only the launcher knows it (`auto`, `gpu`)."""
    max_restarts: int = 0
    """By the launcher itself, not by wtrain."""
    settled: tuple[Settled, ...] = ()
    """What the user has set by options, environment or accelerate's config: left as it is."""
    across: Across | None = None
    """Only in a run with --nodes, of a torchrun whose options are known."""


def describe(
    found: Found, environment: Mapping[str, str], settings: Mapping[str, Any] | None = None
) -> Launcher:
    """What is known of a launcher before it starts.

    `settings` are of accelerate's config file: empty without one, None if it is unreadable.
    """
    variables = {**environment, **found.variables}
    if found.family == "accelerate":
        launcher = _accelerate(found, variables, settings)
    else:
        launcher = _torchrun(found, variables)
    if not found.is_open:
        return launcher
    return msgspec.structs.replace(
        launcher, nodes=None, processes=None, settled=_ALL_SETTLED, across=None
    )


def environment(
    launcher: Launcher | None,
    *,
    run_id: str,
    attempt: int,
    attempt_dir: str,
    node: JobTask | None = None,
) -> dict[str, str]:
    """The variables of one attempt: a new rendezvous, without anything that the user has set.

    A fresh port is `localhost:0`: the launcher binds a free one itself, so no process can take it
    between our choice and its start. Over several nodes all have to agree on id and port: with
    a supervisor on each `node` the plan has them (core.job.rendezvous), else they stay as they are.
    """
    env: dict[str, str] = {}
    if launcher is None:
        return env
    settled = launcher.settled
    if "store" not in settled:
        # With its shared store torchrun's own restarts meet dead workers' addresses: 17 of 29
        # came back, all 14 with this variable.
        env[SHARED_STORE_OFF] = "1"
    if node is not None:
        if launcher.across is not None:
            env |= _of_node(launcher.across, node)
    elif launcher.nodes == 1:
        alone = "rendezvous" not in settled
        if alone:
            # Older torchruns, and accelerate, meet at 127.0.0.1; c10d would take the host's name,
            # which does not resolve everywhere.
            env["PET_LOCAL_ADDR"] = "127.0.0.1"
        if alone and launcher.family == "accelerate":
            env["PET_STANDALONE"] = "1"
        else:
            if alone:
                env["PET_RDZV_BACKEND"] = "c10d"
                env["PET_RDZV_ENDPOINT"] = "localhost:0"
            if "id" not in settled:
                env["PET_RDZV_ID"] = f"{run_id}-{attempt}"
    if "logs" not in settled:
        env["PET_LOG_DIR"] = f"{attempt_dir}/torchrun"
    return env


def _of_node(across: Across, node: JobTask) -> dict[str, str]:
    """What differs between the nodes of a job, or is equal for all by the job's choice."""
    env = {"PET_NNODES": str(node.tasks)}
    if across.node_rank is None and across.backend == "static":  # c10d warns that it ignores it
        env["PET_NODE_RANK"] = str(node.task)
    if across.backend in ("", "c10d") and not across.conf:
        # Who holds the store is a guess of torchrun's by name and address: pytorch#73656.
        env["PET_RDZV_CONF"] = f"is_host={int(node.task == 0)}"
    return env


def rank_streams(launcher: Launcher | None) -> int:
    """For how many ranks separate output streams are useful: 0 for a command without a launcher.

    Over several nodes a launcher's first rank is not rank 0, so there they share one stream.
    """
    if launcher is None or launcher.nodes != 1 or "streams" in launcher.settled:
        return 0
    return min(launcher.processes or UNKNOWN_RANKS, MOST_RANK_STREAMS)


def _torchrun(found: Found, variables: Mapping[str, str]) -> Launcher:
    said = {
        name: variables[variable]
        for name in OPTIONS["torchrun"].names
        if (variable := f"PET_{name.replace('-', '_').upper()}") in variables
    }
    if said.get("standalone") == "0":
        del said["standalone"]
    said |= found.options
    nodes = said.get("nnodes", "1").rpartition(":")[2]
    streams = "redirects" in said or "tee" in said
    settled: dict[Settled, bool] = {
        "rendezvous": any(name in said for name in _RENDEZVOUS),
        "id": "rdzv-id" in said or "standalone" in said,
        "store": SHARED_STORE_OFF in variables,
        "logs": streams or "log-dir" in said,
        "streams": streams,
    }
    return Launcher(
        family="torchrun",
        nodes=_number(nodes),
        processes=_number(said.get("nproc-per-node", "1")),
        max_restarts=_number(said.get("max-restarts", "0")) or 0,
        settled=tuple(name for name, is_said in settled.items() if is_said),
        across=_across(said),
    )


def _across(said: Mapping[str, str]) -> Across:
    backend = said.get("rdzv-backend", "")
    if not backend and _STATIC & set(said):
        backend = "static"  # torchrun's own default
    return Across(
        backend=backend,
        endpoint=said.get("rdzv-endpoint", ""),
        master_addr=said.get("master-addr", ""),
        master_port=said.get("master-port", ""),
        rdzv_id=said.get("rdzv-id", ""),
        node_rank=_number(said["node-rank"]) if "node-rank" in said else None,
        nodes_said="nnodes" in said,
        conf="rdzv-conf" in said,
    )


def _accelerate(
    found: Found, variables: Mapping[str, str], settings: Mapping[str, Any] | None
) -> Launcher:
    options = found.options

    def said(name: str) -> object:
        return options.get(name, (settings or {}).get(name.replace("-", "_")))

    local = (settings or {}).get("compute_environment", "LOCAL_MACHINE") == "LOCAL_MACHINE"
    machines = said("num-machines")
    nodes = _number(1 if machines is None else machines)
    if not local or (settings is None and "num-machines" not in options):
        nodes = None
    total = _number(said("num-processes"))
    own_place = said("main-process-port") is not None or "rdzv-backend" in options
    settled: dict[Settled, bool] = {
        "logs": True,  # its own value of --log-dir is handed on over PET_LOG_DIR
        "rendezvous": own_place or not variables.keys().isdisjoint(_PLACE_VARIABLES),
        "id": "PET_RDZV_ID" in variables,
        "store": SHARED_STORE_OFF in variables,
        "streams": "tee" in options or "PET_REDIRECTS" in variables,
    }
    return Launcher(
        family="accelerate",
        nodes=nodes,
        processes=None if total is None or not nodes else max(total // nodes, 1),
        max_restarts=_number(said("max-restarts")) or 0,
        settled=tuple(name for name, is_said in settled.items() if is_said),
    )


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
