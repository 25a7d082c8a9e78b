"""Several ranks. Their output often shows only the consequences: those families are symptoms."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, declare, family, likely, possible, proven
from watchdog_train.explain.messages import SIZES
from watchdog_train.explain.scene import Captured, Scene

_ELSEWHERE = f"{sets.KNOWN_ELSEWHERE} || {sets.READS_STATE} || {sets.DISMANTLES_GROUP}"
_DOWNLOADS = "http_get|xet_get|get_hf_file_metadata|http_backoff (huggingface_hub/*)"
_PAST = (
    f"{sets.PAST_RENDEZVOUS} || *ncclComm*|*NCCLComm*|*broadcastUniqueNCCLID* || "
    "_invoke_run|_monitor_workers (torch/distributed/elastic/*)"
)
_IN_A_STEP = (
    "_pre_forward|_post_forward|_root_pre_forward|pre_forward|post_forward|_pre_backward_hook|"
    "_pre_backward|pre_backward|_prefetch_handle|_prefetch_unshard (torch/*) || "
    "_engine_run_backward|run_backward|*PythonEngine*|*autograd::Engine*"
)
"""Parameters are gathered for every step, too: that is no save."""
_SENDS_AWAY = (
    "post|put|patch (requests/*|httpx/*|aiohttp/*|urllib3/*) || upload*|put_object|push_to_hub|"
    "_upload*|create_commit|sendmail"
)
_COMM_INIT = (
    "*initXCCLComm*|*create_comm_i*|*atl_*::init_transport*|*pmrt_barrier*|*cclCommInit*|"
    "*getNCCLComm*|*initNCCLComm*|*broadcastUniqueNCCLID*|*bootstrapInit*|*ncclTransport*Setup*|"
    "*ncclTopo*|*ncclCommSplit*|*eagerConnectSingleDevice*|*NCCLComm::create*"
)
_DDP = "__init__ (torch/nn/parallel/distributed.py)"
_FIRST_EXCHANGE = (
    "_verify_param*|_verify_model_across_ranks|_sync_module_states|_sync_params_and_buffers|"
    "_ddp_init_helper|*_broadcast_coalesced|_build_params_for_reducer|*getNCCLComm*|*ncclCommInit*"
)
_ELASTIC = "_rendezvous|next_rendezvous (torch/distributed/elastic/*)"


@family("fsdp-state-gather", "kyuz0/amd-strix-halo-llm-finetuning#6", kind="hang", victims=True,
        remedies=("save-on-all-ranks", "sharded-state-dict"))  # fmt: skip
def gathers_state(_: Scene, process: Captured) -> Cause | None:
    """Some ranks gather a sharded model's parameters, which takes all; another is elsewhere."""
    gathers = any(
        one.passes(sets.GATHERS_STATE) and one.avoids(_IN_A_STEP) for one in process.working
    )
    away = any(
        one.has_ended or (one.is_captured and one.stack.avoids(sets.GATHERS_STATE))
        for one in process.others
        if one.role == "rank"
    )
    return likely() if process.role == "rank" and gathers and away else None


_mismatch = declare(
    "collective-mismatch", "deepspeedai/DeepSpeed#7461", kind="hang",
    remedies=("debug-detail", "drop-last", "single-process", "none-user-fix"),
    says="Ranks wait in different collectives. A branch that not all ranks take is the usual "
    "cause.",
)  # fmt: skip


@_mismatch.job
def _compared(scene: Scene) -> Cause | None:
    differ = scene.relation == "different-operation"
    if scene.shares_group:
        orders = "the ranks began its operations in different orders (first: {orders})"
        may = "ranks may begin its operations in different orders"
        return (proven if differ else likely)(
            "Several threads of a rank use one process group at the same time, "
            f"{f'and {orders}' if differ else f'so {may}'}. "
            "Give the other thread a group of its own (new_group).",
            remedies=("none-user-fix",), rank=scene.culprit if differ else None,
        )  # fmt: skip
    if differ:
        return proven(rank=scene.culprit)
    if scene.relation == "different-size":
        return likely(SIZES, rank=scene.culprit)
    if scene.standing == "different-operations":
        return likely()
    if scene.standing in ("different-places", "partly-named"):
        return possible()
    if scene.relation == "behind" and not scene.records_agree:
        return possible("Ranks have begun different numbers of collectives.", rank=scene.culprit)
    return None


@family("rank0-only-work", "huggingface/accelerate#314", kind="slow", victims=True,
        remedies=("preprocess-before-launch", "raise-ddp-timeout"))  # fmt: skip
def rank0_works_alone(scene: Scene, process: Captured) -> Cause | None:
    """Rank 0 does its part alone. The others wait until it is done or they time out."""
    rank0 = process.role == "rank" and process.rank == 0
    if not (rank0 and process.is_apart and any(not one.is_apart for one in scene.ranks)):
        return None
    loads = f"{_DOWNLOADS} || * (filelock/*) || {sets.LOADER_WAIT}"
    prepares = process.stack.passes(sets.PREPARES_DATA) and process.stack.avoids(loads)
    return likely() if prepares or process.busy or process.changed else None


@family("rank-left-early", "pytorch/pytorch#141069", kind="hang", of=("tcp",),
        remedies=("drop-last", "abort-all-on-failure", "no-eval"))  # fmt: skip
def left_the_others(scene: Scene, process: Captured) -> Cause | None:
    """One rank is in no collective, while the other ranks wait for it in one."""
    stack = process.stack
    if process.role != "rank" or not process.is_apart:
        return None
    if process.has_ended or stack.passes(sets.LEAVES):
        return likely("One rank has ended, and the other ranks wait for it in a collective.")
    sends = stack.passes(f"{sets.EVALUATES_OR_SAVES} || on_*", _SENDS_AWAY)
    sends = sends and stack.avoids(f"{sets.GATHERS_STATE} || {sets.TRACKERS}")
    elsewhere = f"{sets.KNOWN_ELSEWHERE} || {sets.GATHERS_STATE}"
    if sends or (stack.passes(sets.EVALUATES_OR_SAVES) and stack.avoids(elsewhere)):
        return likely("One rank evaluates or saves, while the others wait for it in a collective.")
    prepares = stack.passes(sets.PREPARES_DATA)
    behind = scene.relation == "behind" and scene.records_agree
    if behind and not prepares and stack.avoids(sets.KNOWN_ELSEWHERE):
        return likely("One rank has begun fewer collectives than the others and is in none.")
    away = process.resting or not (process.doing_what == "device" or prepares)
    return possible() if away and stack.avoids(_ELSEWHERE) else None


@family("ddp-init", kind="hang", remedies=("nccl-p2p-off", "single-process"))
def ddp_constructor(scene: Scene, process: Captured) -> Cause | None:
    """The first exchange between the ranks, in the constructor of DDP, does not end."""
    exchanges = process.stack.passes(_DDP, _FIRST_EXCHANGE)
    alike = scene.standing in ("alone", "same", "none")
    return likely() if process.trains and exchanges and alike else None


@family("nccl-comm-init", "NVIDIA/nccl#1016", kind="hang",
        remedies=("nccl-socket-ifname", "rank-env-check", "nccl-p2p-off",
                  "nccl-ib-off"))  # fmt: skip
def communicator(_: Scene, process: Captured) -> Cause | None:
    """The ranks cannot reach each other to set up a communicator, or one has not come so far."""
    return likely() if process.trains and process.any_passes(_COMM_INIT) else None


@communicator.job
def _first_collectives(scene: Scene) -> Cause | None:
    first = scene.relation in ("same", "behind") and scene.first_number < 4
    return possible(rank=scene.culprit) if first else None


@family("store-rendezvous", "pytorch/pytorch#105782", kind="hang", of=("tcp",), symptom=True,
        remedies=("free-port", "rank-env-check"))  # fmt: skip
def rendezvous(_: Scene, process: Captured) -> Cause | None:
    """At least one rank has not come to the rendezvous, or cannot reach its address."""
    stack, meets = process.stack, sets.RENDEZVOUS
    others = [one.stack for one in process.others if one.role == "rank"]
    wait = any(one.passes(meets) and one.avoids(sets.PAST_RENDEZVOUS) for one in others)
    away = process.is_captured and stack.avoids(f"{meets} || {sets.COLLECTIVE}")
    if process.role == "rank" and away and wait:
        return likely(remedies=("none-user-fix",))
    met = (stack.passes(meets) and stack.avoids(_PAST)) or process.any_passes(_ELASTIC)
    return likely() if met and (process.trains or process.role == "launcher") else None


@family("gloo-timeout", kind="hang", symptom=True, remedies=("debug-detail", "no-eval"))
def gloo(scene: Scene, process: Captured) -> Cause | None:
    """A collective on the CPU waits for another rank. Which one did not come, is not told."""
    waits = process.any_passes("*gloo::*|*UnboundBuffer*|*ProcessGroupGloo*")
    return possible() if process.trains and waits and scene.standing in ("alone", "same") else None


@family("nccl-timeout-unattributed", kind="hang", symptom=True,
        remedies=("nccl-p2p-off", "debug-detail"))  # fmt: skip
def collective_does_not_end(scene: Scene, process: Captured) -> Cause | None:
    """A collective does not end: a missing rank, the transport or a GPU may be the cause."""
    ranks = process.role == "rank" and scene.standing == "same" and not scene.any_changed
    waiting = sum(one.passes(sets.COLLECTIVE) for one in process.working)
    return possible() if ranks and waiting == 1 else None


@collective_does_not_end.job
def _records_are_alike(scene: Scene) -> Cause | None:
    return possible() if scene.relation == "same" else None
