"""What the type and message of an error, or a line of output, say: named classes of patterns.

The table of crashes, the families of causes and the remedies ask these alike. Each pattern is for
one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

GPU_MEMORY = (
    r"torch\S*OutOfMemoryError|(?:CUDA|HIP|XPU|NPU|MPS\D+) (?:out of memory|backend out of memory)",
    r"CUDA [Ee]rror: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CU\w+_STATUS_ALLOC_FAILED",
    r"(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)|cudaMalloc\w* .{0,40}out of memory",
    r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|allocat|hbm)|OOM when allocating tensor",
)
HOST_MEMORY = (
    r"^MemoryError\b|DefaultCPUAllocator: (?:can.t|not enough) |std::bad_alloc|ArrayMemory",
    r"[Cc]annot allocate memory|[Uu]nable to allocate [\d.]+ [GTM]iB|\[Errno 12\]",
)
SHARED_MEMORY = (
    r"insufficient shared memory \(shm\)|killed by signal: Bus error|your shared memory limit",
    r"(?i:unable to (?:write to|open|mmap|allocate).{0,60}(?:shm|shared memory|/torch_))",
    r"No space left on device.{0,80}(?:/dev/shm|/torch_\d+|psm_)|/dev/shm.*No space left",
)
NETWORK_FILE = (
    r"Stale (?:NFS )?file handle|Input/output error|\[Errno (?:116|5|121|107|108|112)\]",
)
PORT_IN_USE = (r"EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]|server socket has failed to",)

ERRORS: Mapping[str, tuple[str, ...]] = {
    # What may follow a crash
    "own-bug": (r"(?:SyntaxError|IndentationError|TabError|ModuleNotFoundError)\Z",),
    "no-script": (r"(?:No module named|can't open file|can't find '__main__' module)",),
    "import-may-pass": (r"cannot open shared object|partially initialized module|DLL load failed",),
    "missing-file": (r"(?m:^|\.)FileNotFoundError:",),
    "transient": (
        r"(?m:^|\.)(?:Connection\w*Error|BrokenPipeError|TimeoutError|\w*Timeout(?:Exception)?):",
        r"(?m:^|\.)(?:gaierror|IncompleteRead|ChunkedEncodingError|ProtocolError):",
        r"(?m:^|\.)(?:RemoteDisconnected|DistNetworkError):",
        r"\b(?:HTTP|Server)\w* ?(?:Error|status)?\W{0,3}5\d\d\b",
        r"\b5\d\d (?:(?:Internal )?Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out)",
        r"Connection (?:reset|refused|closed|aborted|timed out)|Read timed out|Broken pipe",
        r"Temporary failure in name resolution|\bNCCL\b|ProcessGroupNCCL|DistBackendError",
        *NETWORK_FILE,
        *PORT_IN_USE,
    ),
    "checkpoint": (r"(?i)checkpoint|load(?:ing)? (?:the )?(?:model )?state|ckpt",),
    "of-another-process": (
        (
            r"(?is)\b(?:worker|process|child|thread|actor|producer|loader|helper|subprocess)\w*\b.{0,80}\b"
            r"(?:exit|end|die|dead|fail|crash|terminat|kill|lost|gone|stop|broken|not alive)"
        ),
        r"\babove\b|BrokenProcessPool|EOFError|BrokenPipe|Connection(?:Reset|Aborted|Refused)",
        r"queue\.Empty",
    ),
    # What calls for a remedy, by the name of its ground
    "dataloader": (r"DataLoader|worker",),
    "pin-memory-thread": (r"[Pp]in[_ ]memory",),
    "fork": (r"\bfork",),
    "shared-tensors": (
        r"Too many open files|ancdata|[Ss]hared memory|shared_memory|shm|Bus error|No space left",
    ),
    "shared-memory": (r"[Ss]hared memory|shm|Bus error|No space left on device",),
    "datasets": (r"datasets|num_proc",),
    "tokenizers": (r"[Tt]okenizer",),
    "huggingface-hub": (r"huggingface|hf\.co|hf-mirror|LocalEntryNotFound|HfHub",),
    "xet": (r"xet",),
    "remote-file": (r"h5py|HDF5|fsspec|s3fs",),
    "network-file-system": (r"Stale file handle|ESTALE|\bNFS\b|flock|No locks",),
    "collective": (r"[Cc]ollective|\bNCCL\b|[Gg]loo|ProcessGroup|Broken pipe|[Tt]imed? ?out",),
    "nccl": (r"NCCL|nccl",),
    "rendezvous": (
        r"[Rr]endezvous|TCPStore|MASTER_ADDR|init_process_group|[Bb]ootstrap|ncclCommInit|socket",
    ),
    "rank-left-early": (r"[Uu]neven|exited|closed by (?:peer|remote)|finished early",),
    "rank-failed": (r"Traceback|Error:|exitcode|closed by (?:peer|remote)",),
    "slow-rank": (r"[Tt]imed? ?out|Timeout",),
    "save": (r"state_dict|[Ss]av",),
    "exit": (r"destroy_process_group",),
    "spawn": (r"freeze_support|bootstrapping phase|__main__",),
    "gpu-wait": (r"CUDA|HIP",),
    "gpu-fault": (
        r"\bXid\b|\bECC\b|[Uu]ncorrectable|fallen off|CUDA error|CUDA_ERROR|HSA_STATUS",
        r"HIP error|hardware|illegal (?:memory|instruction)|NVLink|unspecified launch failure",
    ),
    "gpu-memory": GPU_MEMORY,
    "host-memory": (r"(?i:\boom[-_ ]|out of memory: kill)", *HOST_MEMORY),
    "native-threads": (r"OMP|OpenMP|MKL",),
    "wandb": (r"wandb|W&B",),
    "compiler": (r"inductor|[Tt]riton|dynamo|torch\.compile",),
    "nan": (r"(?i)\bnan\b|overflow|\binf\b|loss scale",),
    "mps": (r"MPS|mps|[Mm]etal",),
}


@cache
def _pattern(name: str) -> re.Pattern[str] | None:
    return re.compile("|".join(ERRORS[name])) if name in ERRORS else None


def is_error(name: str, text: str) -> bool:
    """Whether a text is of the class; False for a class that is not listed."""
    pattern = _pattern(name)
    return pattern is not None and pattern.search(text) is not None
