"""The named starting points of a configuration: what each changes, and why.

Data only. The complete, commented files in configs/ are written from here, so that an installed
wtrain needs only its code.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Preset(msgspec.Struct, frozen=True):
    """Changed settings: key -> (value, why)."""

    text: str
    changes: dict[str, tuple[Any, str]]


def fitting(platform: str, processor: str) -> str:
    if platform == "darwin" and processor == "arm64":
        return "apple-silicon"
    return "windows" if platform == "win32" else "default"


PRESETS: dict[str, Preset] = {
    "default": Preset("What a run uses when nothing is said.", {}),
    "overnight": Preset(
        "Nobody watches: try longer, and let nothing wait for a person until the morning.",
        {
            "detection.stopped_timeout_s": (
                1800.0,
                "nobody is there to continue a stopped job; half an hour outlasts a debugger",
            ),
            "patience.live_lock_s": (
                900.0,
                "nobody is there to judge a loop that asks for something that never comes",
            ),
            "stopping.grace_s": (120.0, "no one waits at a terminal, and a save may be slow"),
            "recovery.max_restarts": (10, "a night has room for more attempts than an afternoon"),
            "recovery.backoff_cap_s": (
                900.0,
                "an outage of storage or network often lasts a quarter of an hour",
            ),
            "evidence.total_s": (60.0, "half a minute more costs less than a bundle cut short"),
            "evidence.process_s": (20.0, "the same, for one slow process"),
            "output.log_cap_bytes": (256 * 1024 * 1024, "a whole night's output"),
        },
    ),
    "celery-worker": Preset(
        "A worker that trains in tasks and idles between them.",
        {
            "patience.network_s": (
                3600.0,
                "the broker may be away; the worker waits for it by itself",
            ),
            "stopping.grace_s": (
                600.0,
                "SIGTERM is a warm shutdown: the worker ends after its present task",
            ),
            "stopping.ask_s": (300.0, "a task saves at its next step, which may be long"),
            "recovery.max_restarts": (
                20,
                "a service is to be up; each task that trains starts the count anew",
            ),
        },
    ),
    "apple-silicon": Preset(
        "macOS on Apple silicon: the CPU in place of MPS, one thread, no workers.",
        {
            "recovery.with_remedies": (
                ("cpu-not-mps", "num-workers-0", "omp-1", "tokenizers-off"),
                "MPS in a child hangs, two OpenMP runtimes deadlock, and workers are spawned",
            ),
            "detection.poll_s": (2.0, "without /proc one look costs several milliseconds"),
            "detection.quiet_windows": (
                5,
                "the I/O of a process is not told there, so CPU time must be low for longer",
            ),
            "evidence.process_s": (15.0, "py-spy runs as root there, which takes longer to start"),
        },
    ),
    "windows": Preset(
        "Windows: workers and looks at processes are slow there, and SIGTERM is not handled.",
        {
            "recovery.with_remedies": (
                ("num-workers-0", "spawn", "omp-1", "tokenizers-off"),
                "a spawned worker imports the script again, and most hangs there begin in one",
            ),
            "detection.poll_s": (2.0, "a look at all processes costs tens of milliseconds"),
            "detection.silence_s": (
                30.0,
                "a virus scanner reads every file that is imported for the first time",
            ),
            "stopping.hang_grace_s": (0.0, "to terminate is at once there; to wait only delays"),
        },
    ),
}
