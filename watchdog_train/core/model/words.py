"""The few words that values are made of: roles, phases, kinds of verdicts."""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # typing has it from Python 3.11 on, and only type checkers use it

    def dataclass_transform(**_):  # noqa: ANN003, ANN201
        return lambda kind: kind


Role = Literal["keeper", "launcher", "rank", "worker", "other"]


Phase = Literal[
    "unknown", "startup", "download", "load", "compile", "first_step", "train", "eval",
    "checkpoint", "idle", "finishing", "finished",
]  # fmt: skip


RemedyKind = Literal["execution", "training", "device"]


ResumeVia = Literal["hook", "argv", "api", "env", "script", "none"]


ResumeVerdict = Literal["verified", "not-confirmed", "contradicted"]
"""Whether training resumed from the plan's checkpoint; contradicted: by its own count it began
at a lower step; not-confirmed: the load was not seen, and nothing contradicts it."""


DiagnosisKind = Literal["hang", "crash", "slow", "stopped", "unknown"]


BundleWhy = Literal["stall", "crash", "manual"]


Basis = Literal[
    "quiet", "proven", "hard-budget", "uninterruptible", "device-wait", "live-lock", "user-limit",
    "rank-gone", "stopped", "finishing", "alone", "peer",
]  # fmt: skip
"""Why a silence is suspected or a stall; device-wait: ranks wait for GPUs that compute nothing;
live-lock: it only polls for an event; alone: of a suspicion only, the rest of the job works or
does not report; peer: the other machines do not report."""


Outcome = Literal["succeeded", "failed", "stopped", "gave_up"]


def host_of(where: str | msgspec.UnsetType) -> str:
    """A machine as a value has it; empty: this one."""
    return "" if where is msgspec.UNSET else where


def written(host: str) -> str | msgspec.UnsetType:
    """The same for JSON, which leaves this machine out."""
    return host or msgspec.UNSET


class ValueType(msgspec.StructMeta):
    """Makes every kind of value frozen and its fields keyword-only by default."""

    def __new__(cls, *args: Any, **options: Any) -> "ValueType":  # noqa: PYI034 - Self is of 3.11
        return super().__new__(cls, *args, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, metaclass=ValueType):
    """Base of every value here: compared by content."""


SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    19: "SIGSTOP",
    24: "SIGXCPU",
}
"""As Linux numbers them; a number without a name here is shown as a number."""


def signal_in_code(code: int) -> int:
    """The signal in an exit code, 0 without one: shells print 128+N, launchers in Python -N."""
    return -code if code < 0 else max(0, code - 128)


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 40`."""
    return SIGNAL_NAMES.get(number, f"signal {number}")
