"""How to see the page of a run from another machine. Pure."""

from __future__ import annotations

from watchdog_train.report import words
from watchdog_train.report.words import clean

PORT = 8721


def fetch_lines(*, page: str, user: str, host: str) -> tuple[str, ...]:
    """Where the page is, and two ways to it.

    Args:
        page: its absolute path.
        user: who reads this.
        host: this machine, as it calls itself.
    """
    there = clean(f"{user}@{host}" if user else host, 200)
    folder, _, name = page.rpartition("/")
    serve = f"python3 -m http.server -b 127.0.0.1 -d {words.command_text([folder])} {PORT}"
    return (
        f"the page: {clean(page, 1000)}",
        f"to fetch it from another machine: scp {clean(f'{there}:{page}', 1200)} .",
        (
            "or look at it through a tunnel, without copying: "
            f"ssh -L {PORT}:127.0.0.1:{PORT} {there} {words.command_text([serve])}, "
            f"then open http://127.0.0.1:{PORT}/{name}"
        ),
    )
