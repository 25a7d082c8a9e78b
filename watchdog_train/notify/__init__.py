"""Notification URLs: which can be used here, and a name without secrets for each.

`notify.send` is the process that sends; URLs never get into the log. Nothing is sent here.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence

from watchdog_train.core.model import Value
from watchdog_train.errors import WtrainError

PLAIN = ("http", "https")
"""Schemes that the standard library can send to."""
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30})://(?P<rest>[^\s/]\S*)", re.IGNORECASE)


class Message(Value):
    """A plain http(s) URL gets it as JSON."""

    schema_version: int = 1
    title: str
    message: str
    topics: tuple[str, ...]
    run_id: str
    step: int | None = None


class Order(Value):
    """One message to one URL; the reader deletes the file that holds it."""

    url: str
    message: Message
    out: str = ""
    """File for the answer."""


class Answer(Value):
    why: str | None = None
    """None when it was sent."""


def scheme_of(url: str) -> str | None:
    """`https`, `slack`; None for what is no URL."""
    match = _SCHEME.fullmatch(url.strip())
    return match["scheme"].lower() if match else None


def names(urls: Sequence[str]) -> tuple[str, ...]:
    """A name for each: scheme and number. Host and path can be secrets, too: slack://TOKEN/..."""
    return tuple(f"{scheme_of(url) or 'unknown'} #{i}" for i, url in enumerate(urls, 1))


def refuse_unusable(urls: Sequence[str]) -> None:
    """Refuse at the start what would fail at night.

    WtrainError: something is no URL, or needs a library that is not installed.
    """
    for url, name in zip(urls, names(urls), strict=True):
        scheme = scheme_of(url)
        if scheme is None:
            raise WtrainError(
                f"notification URL number {name.rpartition('#')[2]} is not SCHEME://PLACE",
                hint="https://host/path gets JSON by POST; others are those of apprise, "
                "such as ntfy://topic; it is not shown here because it may be a secret",
                reference="notify-url",
            )
        if scheme not in PLAIN and importlib.util.find_spec("apprise") is None:
            raise WtrainError(
                f"notifications to {scheme}:// need the library apprise",
                hint="pip install 'watchdog-train[notify]'; an http(s) URL gets JSON without it",
                reference="notify-needs-apprise",
            )
        if scheme not in PLAIN and not _is_known_to_apprise(url):
            raise WtrainError(
                f"apprise does not understand notification URL number {name.rpartition('#')[2]}, "
                f"of {scheme}://",
                hint="its documentation has the parts that a URL of this service needs; "
                "it is not shown here because it may be a secret",
                reference="notify-url",
            )


def _is_known_to_apprise(url: str) -> bool:
    """Whether it would try; an exception of a plugin of it is no reason to refuse a night."""
    import apprise

    try:
        return bool(apprise.Apprise().add(url))
    except Exception:  # noqa: BLE001 - a plugin may raise anything; the child says what failed
        return True
