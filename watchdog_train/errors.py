"""The only error a user of wtrain sees: what, where, why, how to fix it, and its exit code.

Imports nothing of wtrain, so that every room may raise it.
"""

from __future__ import annotations

EXIT_SUCCESS = 0
EXIT_OUR_BUG = 70
"""A bug of wtrain itself (EX_SOFTWARE of sysexits.h)."""
EXIT_RETRY_ELSEWHERE = 75
"""Stalled or node trouble and no restart allowed here (EX_TEMPFAIL)."""
EXIT_GAVE_UP = 76
"""The restart budget is spent, or attempts make no progress."""
EXIT_STOPPED = 77
"""Stopped on request."""
EXIT_REFUSED = 78
"""Bad configuration or usage, command not found, or refused (EX_CONFIG)."""
EXIT_INTERRUPTED = 130
"""Ctrl-C."""


class WtrainError(Exception):
    """A mistake that the user can fix; the command line prints it without a traceback.

    Args:
        message: what is wrong, in one sentence.
        context: where: a file and line, a command, a run directory.
        hint: how to fix it.
        reference: kebab-case id, stable, to search for.
        exit_code: what the command exits with.
    """

    def __init__(
        self,
        message: str,
        *,
        context: str | None = None,
        hint: str | None = None,
        reference: str = "error",
        exit_code: int = EXIT_REFUSED,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.context = context
        self.hint = hint
        self.reference = reference
        self.exit_code = exit_code

    def render(self) -> str:
        """The text for a terminal, several lines, no trailing newline."""
        lines = [f"error: {self.reference}"]
        lines += [f"  {line}" for line in (self.context or "").splitlines()]
        lines += [f"  {line}" for line in self.message.splitlines()]
        if self.hint:
            lines.append(f"  hint: {' '.join(self.hint.splitlines())}")
        return "\n".join(lines)
