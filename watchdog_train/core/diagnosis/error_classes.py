"""Classes of error messages: one list of patterns each, for the table of crashes, the families of
causes and the remedies alike. Each pattern is for one line.
"""

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


def any_of(*classes: tuple[str, ...]) -> str:
    """One pattern for all of these classes."""
    return "|".join(pattern for patterns in classes for pattern in patterns)
