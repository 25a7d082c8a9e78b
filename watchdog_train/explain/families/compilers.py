"""Compilers that the training has started."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, family, likely, possible
from watchdog_train.explain.scene import Captured, Scene

_RESULT = "result|wait|_wait_futures|get|join|sleep|as_completed|acquire|_result|submit"
_COMPILERS = (
    "compile|make_*|ast_to_ttir|optimize_ttgir|translate*|_precompile*|precompile*|run_pass*|"
    "link_extern_libs|warmup (triton/*|torch/_inductor/runtime/*) || *llvm::*|*mlir::*|*LLVM*|"
    "*ptxas*|*nvrtc* || _compile_file|compile_file|_run_build_command|run_compile_cmd|"
    "load_pybinding*|_worker_compile_cpp|compile_cpp* (torch/_inductor/*) || backend_compile*|"
    "compile_or_get_cached|_compile_and_write_cache (jax/_src/compiler.py) || compile*|"
    "_compile_for_args (numba/core/*) || jit_load|load (deepspeed/ops/op_builder/*) || "
    f"{sets.BUILDS_EXTENSION}"
)
_TRACES = (
    "* (torch/_dynamo/symbolic_convert.py|torch/_dynamo/variables/*|torch/_dynamo/output_graph.py|"
    "torch/_inductor/scheduler.py|torch/_inductor/graph.py|torch/_inductor/codegen/*|"
    "torch/_inductor/ir.py|torch/_functorch/*|torch/fx/*|torch/_subclasses/*|sympy/*)"
)
_ELSEWHERE = (
    f"{sets.LOADER_WAIT} || {sets.COLLECTIVE} || _find_and_load* (<frozen importlib*>|importlib/*)"
)
_TAKES_MINUTES = "That takes minutes and is no hang as long as it uses the CPU."


@family("triton-autotune", kind="slow", remedies=("plain-retry", "no-compile"))
def tries_kernels(_: Scene, process: Captured) -> Cause | None:
    """Variants of a kernel are being tried. That takes minutes for each new shape and ends by
    itself.
    """
    return likely() if process.stack.passes(sets.AUTOTUNES) else None


@family("compile-worker", "pytorch/pytorch#96662", kind="slow", of=("pipe",), victims=True,
        remedies=("no-compile", "compile-threads-1"))  # fmt: skip
def compiles(_: Scene, process: Captured) -> Cause | None:
    """The training waits for the processes that compile."""
    stack, children = process.stack, process.children
    waits = process.doing_what in ("poll", "child", "pipe", "join", "queue") and not process.busy
    running = any(one.is_compiler and (one.is_runnable or one.busy) for one in children)
    if process.trains and waits and running and stack.avoids(sets.LOADER_WAIT):
        return likely("{who} waits, and a compiler that it has started runs.", remedies=())
    if process.is_victim:
        return None
    if process.trains and stack.passes(sets.INDUCTOR_WAIT, _RESULT):
        if any(one.busy for one in children):
            return likely()
        return likely(
            "The training waits for the processes that compile. If they are gone or use no CPU, it "
            "waits for ever.",
            kind="hang",
        )
    waits_elsewhere = f"{sets.AUTOTUNES} || {sets.LOADER_WAIT} || {sets.INDUCTOR_WAIT}"
    if stack.passes(_COMPILERS) and stack.avoids(waits_elsewhere):
        return likely(f"{{who}} compiles. {_TAKES_MINUTES}")
    if process.trains and stack.inner(_TRACES, depth=10) and stack.avoids(_ELSEWHERE):
        return possible(f"{{who}} traces and compiles the model. {_TAKES_MINUTES}")
    return None
