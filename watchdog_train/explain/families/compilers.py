"""Compilers that the training has started."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, family, likely, possible
from watchdog_train.explain.scene import Captured, Scene

_AUTOTUNES = (
    "_bench|benchmark|autotune|prune_configs|check_disk_cache (triton/runtime/autotuner.py) || "
    "do_bench* (triton/testing.py) || *autotune*|bench|benchmark*|do_bench* (torch/_inductor/*)"
)
_WAITS_FOR_RESULT = (
    "wait|_wait_futures|result|get_result|benchmark*|_compile_end|async_compile* "
    "(torch/_inductor/async_compile.py|torch/_inductor/codecache.py|"
    "torch/_inductor/compile_worker/subproc_pool.py|torch/_inductor/autotune_process.py)"
)
_RESULT = "result|wait|_wait_futures|get|join|sleep|as_completed|acquire|_result|submit"
_COMPILERS = (
    "compile|make_*|ast_to_ttir|optimize_ttgir|*precompile*|run_pass* (triton/*|"
    "torch/_inductor/runtime/*) || *llvm::*|*mlir::*|*LLVM*|*ptxas*|*nvrtc* || *compile_file|"
    "_run_build_command|run_compile_cmd|_worker_compile_cpp|compile_cpp* (torch/_inductor/*) || "
    "backend_compile*|compile_or_get_cached (jax/_src/compiler.py) || compile* (numba/core/*) || "
    f"jit_load|load (deepspeed/ops/op_builder/*) || {sets.BUILDS_EXTENSION}"
)
_TRACES = (
    "* (torch/_dynamo/symbolic_convert.py|torch/_dynamo/variables/*|torch/_dynamo/output_graph.py|"
    "torch/_inductor/scheduler.py|torch/_inductor/graph.py|torch/_inductor/codegen/*|"
    "torch/_inductor/ir.py|torch/_functorch/*|torch/fx/*|torch/_subclasses/*|sympy/*)"
)
_IMPORTS = "_find_and_load* (<frozen importlib*>|importlib/*)"


@family("triton-autotune", kind="slow", remedies=("plain-retry", "no-compile"))
def tries_kernels(_: Scene, process: Captured) -> Cause | None:
    """Variants of a kernel are tried, for minutes with each new shape. That ends by itself."""
    return likely() if process.stack.passes(_AUTOTUNES) else None


@family("compile-worker", "pytorch/pytorch#96662", kind="slow", of=("pipe",), victims=True,
        remedies=("no-compile", "compile-threads-1"))  # fmt: skip
def compiles(_: Scene, process: Captured) -> Cause | None:
    """{who} compiles, or waits for a compiler. As long as that uses CPU, it is no hang."""
    stack, children = process.stack, process.children
    waits = process.doing_what in ("poll", "child", "pipe", "join", "queue") and not process.busy
    running = any(one.is_compiler and (one.is_runnable or one.busy) for one in children)
    if process.trains and waits and running and stack.avoids(sets.LOADER_WAIT):
        return likely(remedies=())
    if process.is_victim:
        return None
    if process.trains and stack.passes(_WAITS_FOR_RESULT, _RESULT):
        if any(one.busy for one in children):
            return likely()
        return likely("The processes that compile are gone or use no CPU.", kind="hang")
    elsewhere = f"{_AUTOTUNES} || {sets.LOADER_WAIT} || {_WAITS_FOR_RESULT}"
    if stack.passes(_COMPILERS) and stack.avoids(elsewhere):
        return likely()
    traces = process.trains and stack.inner(_TRACES, depth=10)
    elsewhere = f"{sets.LOADER_WAIT} || {sets.COLLECTIVE} || {_IMPORTS}"
    return possible() if traces and stack.avoids(elsewhere) else None
