"""Error messages that libraries print, and the family that each one names. Never prose.

A row is read in the run's own output and in logs that are given to `wtrain diagnose`: one regular
expression for one line, without the prefixes of launchers and clocks. A line with progress after it
was a warning and does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from watchdog_train.core.diagnosis.error_classes import (
    GPU_MEMORY,
    HOST_MEMORY,
    NETWORK_FILE,
    PORT_IN_USE,
    SHARED_MEMORY,
)
from watchdog_train.core.model import DiagnosisKind
from watchdog_train.core.model import explanation as x


class Message(NamedTuple):
    family: str
    certainty: x.Certainty
    pattern: str
    """At most 120 characters; `^` and `$` are a line's."""
    says: str = ""
    """Instead of the family's sentence."""
    kind: DiagnosisKind = "crash"
    unless: Literal["oom-not-counted", "shm-free"] | None = None
    """A reading of the machine's own counters that disproves it."""
    remedies: tuple[str, ...] | None = None
    place: Literal["anywhere", "stays", "end"] = "anywhere"
    """stays: printed at least twice, and no later line has a number for what it names; end: the
    log ends with it."""


def _rows(name: str, certainty: x.Certainty, *patterns: str, **more: Any) -> Iterator[Message]:
    return (Message(name, certainty, pattern, **more) for pattern in patterns)


_GPU_FAULT = "The GPU or its driver has failed. No retry on this machine will help."
SIZES = (
    "Ranks bring tensors of different size to the same collective. Uneven shards or batches are "
    "the usual cause."
)
BUS_ERROR = "A process died of a bus error. Most often that means that /dev/shm was full."
KILLED = (
    "A process was killed without a message, most often by the memory killer. Nothing here "
    "proves it."
)

MESSAGES: tuple[Message, ...] = (
    # Devices
    *_rows("gpu-fault", "proven",
        r"NVRM: Xid \(.*\):? (?:48|6[1-4]|69|7[4-9]|8[0-9]|9[2-5]|1[0-9]{2})\b",
        r"(?i)fallen off the bus|GPU is lost|uncorrectable (?:ECC|NVLink) error|cudaErrorECC",
        r"(?i)rm_?init_?adapter failed|unable to determine the device handle for gpu",
        kind="hang", says=_GPU_FAULT),
    *_rows("gpu-fault", "likely",
        r"NVRM: Xid(?! ?\([^)]*\):? (?:13|31|43|45)\b)",
        r"(?i)amdgpu.{0,80}(?:ring \w+ timeout|GPU reset|GPU recovery|hang detected)",
        r"HSA_STATUS_ERROR_\w+|Memory access fault by GPU node|HW Exception by GPU node",
        r"nvidia-smi.{0,40}(?:has failed|couldn.t communicate)|No devices were found",
        r"(?i)(?:AER:|pcie ?bus error).{0,80}(?:uncorrect|fatal)|NVLink.{0,60}(?:fatal|fault)",
        kind="hang"),
    *_rows("cuda-oom", "proven", *GPU_MEMORY),
    Message("mps-hang", "likely",
        r"kIOGPUCommandBufferCallbackError(?!Out)\w+|(?i:caused GPU (?:timeout|hang) error)",
        kind="hang"),
    # Memory, shared memory and files
    *_rows("oom-killer", "proven",
        r"(?i)out of memory: kill|oom-kill:constraint|invoked oom-killer|OOMKilled|oom.kill event",
        r"(?i)due to the node running low on memory|exceeded (?:job|step) memory limit"),
    *_rows("oom-killer", "likely",
        r"is killed by signal: Killed|(?i:abruptly died|signal 9 \(SIGKILL\))|exitcode\s*:\s*-9\b",
        r"died with <Signals\.SIGKILL|(?i:exit(?:ed with)? (?:status|code):? 137\b)",
        r"^Killed\s*$|^\s*\S+: +line \d+: +\d+ Killed\b",
        says=KILLED, unless="oom-not-counted"),
    *_rows("oom-killer", "likely", *HOST_MEMORY, says="The machine had no memory left."),
    Message("descriptors-exhausted", "proven", r"\[Errno 2[34]\]|(?i:too many open files)"),
    Message("descriptors-exhausted", "likely", r"received \d+ items of ancdata",
        "A tensor of a worker came without its descriptor. The kernel drops it when the "
        "receiver has as many files open as it may: raise the limit (`ulimit -n`)."),
    *_rows("shm-exhausted", "proven", *SHARED_MEMORY),
    Message("shm-exhausted", "likely",
        r"Signal 7 \(SIGBUS\)|exitcode\s*:\s*-7\b|\bSIGBUS\b|Bus error(?: \(core dumped\))?\s*$",
        BUS_ERROR, unless="shm-free"),
    # Forks and loaders
    Message("fork-cuda-init", "proven",
        r"Cannot re-initialize \w+ in (?:a )?forked subprocess|use the 'spawn' start method"),
    *_rows("fork-native-lock", "likely",
        r"OMP: .*fork|libgomp: .*fork|fork\(\) called from a process already using",
        r"may have been in progress in another thread when fork\(\) was called|AfterForkError"),
    Message("fork-hdf5", "likely",
        r"(?i)bad object header|wrong b-tree signature|inflate\(\) failed|addr overflow, addr"),
    Message("spawn-start", "proven",
        r"before the current process has finished its bootstrapping|start a new process before"),
    Message("spawn-start", "proven", r"A SemLock created in a fork context is being",
        "A lock or queue for forked processes is handed to a spawned one: use "
        '`multiprocessing.get_context("spawn")`.'),
    Message("spawn-start", "likely", r"SemLock\._rebuild|in rebuild_(?:pipe_)?connection",
        "A spawned process cannot rebuild a lock or pipe that it was sent: its parent was gone "
        "or had removed it."),
    Message("cpu-thread-contention", "likely",
        r"OMP: Error #15|Initializing lib\w*omp\w*[\w.]*, but found lib\w*omp",
        "Two OpenMP runtimes are in one process."),
    Message("dataloader-worker-died", "likely",
        r"DataLoader worker \(pid.{0,40}\) (?:is killed by signal: (?!Killed|Bus)|exited)"),
    Message("dataloader-worker-stuck", "likely",
        r"DataLoader timed out after \d+|^Worker timed out after \d+ seconds",
        "No worker gave a batch within the loader's own time limit. Stacks of the workers "
        "would tell why."),
    Message("datasets-map-num-proc", "proven", r"subprocesses has abruptly died",
        "One of the processes of a datasets map has died. The map cannot finish without it."),
    Message("pin-memory-thread", "likely",
        r"Pin memory thread exited unexpectedly|in pin memory thread|\bin _pin_memory_loop\b",
        "The thread that pins batches has ended, and the main thread still waits for its "
        "batches."),
    # Services
    Message("waiting-for-input", "likely",
        r"\(?(?:Pdb|ipdb)(?:\+\+)?[)>]+\s*$|\[[yY]/[nN]\]:?\s*$|wandb: Enter your choice",
        kind="stopped", place="end"),
    *_rows("logger-service-init", "likely",
        r"\bwandb\.[\w.]*Error\b|(?:Manager|ServiceStart)\w*Error|run initialization has timed out",
        r"(?i)with url: \S*(?:mlflow|wandb|comet|neptune|clearml)",
        says="The experiment tracker's service or server does not answer, and nobody caught its "
        "error."),
    Message("logger-service-init", "likely",
        r"wandb: (?:Network error|ERROR).{0,99}(?i:time|retry|connection|api ?key|login|respond)",
        kind="hang"),
    *_rows("hub-download", "likely",
        r"(?i)(?:huggingface\.co|hf-mirror|hf\.co).{0,200}(?:timed? ?out|max retries|refused)",
        r"(?i)(?:timed? ?out|max retries|Connect\w*Error).{0,200}(?:huggingface|hf)\.co",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|HfHubHTTPError|Couldn't reach .*on the Hub"),
    *_rows("hub-download", "possible",
        r"^(?:requests|urllib3)\.exceptions\.\w*(?:Timeout|Connection|Retry|Protocol|Chunked)",
        r"^(?:httpx\.\w+(?:Timeout|Error)|botocore\.exceptions\.\w+Error|urllib\.error\.URLError)"),
    Message("file-lock", "likely", r"(?i)database is locked|unable to lock file, errno = 11",
        "Another process holds the file."),
    Message("file-lock", "likely",
        r"filelock\.(?:_error\.)?Timeout|Lock \d+ not acquired on |file lock .* not be acquired",
        kind="hang"),
    Message("file-lock", "likely", r"(?i)no locks available|\[Errno 37\]",
        "The file system grants no locks.", remedies=("local-cache",)),
    *_rows("disk-io", "likely", *NETWORK_FILE),
    # Compilers, threads and numbers
    Message("compile-worker", "likely",
        r"torch[./\\]_inductor.*(?:BrokenProcessPool|SubprocException)|SubprocPool.*unclean",
        "The processes that compile are gone."),
    Message("exit-join", "likely", r"could not acquire lock for .{1,90} at interpreter shutdown",
        "A lock was lost while the interpreter shut down."),
    Message("exit-join", "likely", r"TimeoutExpired: .*torch\._inductor\.compile_worker"),
    Message("gil-deadlock", "likely",
        r"Could not acquire GIL within \d+ ms|possible GIL induced hang",
        "The collective library could not take the interpreter lock. Some thread holds it and "
        "waits in native code.", kind="hang"),
    Message("gil-deadlock", "possible",
        r"watchdog (?:thread )?(?:got stuck|hang detected)|Heartbeat monitor timed out",
        "The watchdog of the collectives is stuck itself. Most often a thread holds the "
        "interpreter lock.", kind="hang"),
    Message("nan-loss", "proven", r"(?i)loss scale (?:already at minimum|reached)"),
    Message("nan-loss", "likely",
        r"(?i)(?:loss\w*|grad_?norm|ppl)[\"']?\s*[:=|]?\s*[\"']?(?:nan|-?inf(?:inity)?)\b",
        kind="slow", place="stays"),
    *_rows("nan-loss", "likely",
        r"(?i)(?:loss|gradient|logits).{0,40}\b(?:is|are|contains?)\b.{0,20}\b(?:nan|inf)\b",
        r"returned nan values in its \d+th output|probability tensor contains either"),
    # Ranks
    *_rows("collective-mismatch", "proven",
        r"Detected mismatch between collectives on ranks|CollectiveFingerPrint|name mismatch",
        r"is running inconsistent collective|Mismatched (?:data types|ALL\w+|BROADCAST|tensor)"),
    Message("collective-mismatch", "likely",
        r"DDP expects same model across all ranks|of the same param in process|preamble\.length",
        SIZES),
    Message("collective-mismatch", "likely",
        r"Expected to have finished reduction in the prior iteration|did not receive grad for",
        "Parameters took no part in the loss on some rank."),
    Message("rank-left-early", "likely", r"Detected at least one rank that exhausted inputs",
        "A rank had no more batches while others still had some."),
    Message("rank-left-early", "possible",
        r"reached monitoredBarrier, but received errors|failed to pass monitoredBarrier"),
    Message("nccl-comm-init", "proven", r"has already checked in|Duplicate GPU detected",
        "Two processes claim to be the same rank or use the same GPU.",
        remedies=("rank-env-check", "nccl-socket-ifname")),
    *_rows("nccl-comm-init", "likely",
        r"NCCL WARN (?:\[Service thread\] |Net ?: )?(?:[Bb]ootstrap|socket|[Cc]onnect to|Call to)",
        r"no socket interface found|ncclCommInitRank\w* failed|misc/socket\.cc:\d+ NCCL WARN",
        r"\b(?:EI0006|EI0009|EJ0001)\b|oneCCL: .{0,60}failed|waiting for `initialize clique",
        kind="hang"),
    Message("nccl-comm-init", "likely",
        r"nccl(?:System|Internal|Remote|UnhandledCuda)Error|NCCL (?:error|failure) .*unhandled"),
    *_rows("store-rendezvous", "proven", *PORT_IN_USE, says="The port of the rendezvous is taken."),
    *_rows("store-rendezvous", "likely",
        r"client socket has (?:timed out|failed to connect)|connection to the C10d store has fail",
        r"Rendezvous(?:Timeout|Closed)Error|(?i:seconds waiting for clients)|DistStoreError",
        r"environment variable (?:MASTER_\w+|RANK|WORLD_SIZE) expected, but not set",
        r"retrieving ncclUniqueId from \[\d+\] via c10d|store based barrier to initialize"),
    *_rows("gloo-timeout", "possible",
        r"gloo[/\\]transport[/\\].{0,80}(?i:timed out|connection (?:closed|reset|refused))",
        r"(?i)timed out waiting \d+ ?ms for (?:recv|send) operation|connectFullMesh failed"),
    *_rows("nccl-timeout-unattributed", "possible",
        r"Watchdog caught collective operation timeout|NCCL operations have failed or timed out",
        r"\b(?:EI0002|ERR02005)\b|HCCL_\w*TIMEOUT|ProcessGroup(?:HCCL|XCCL).{0,80}timed out",
        kind="hang"),
)  # fmt: skip
"""The first row that fits speaks for its family."""
