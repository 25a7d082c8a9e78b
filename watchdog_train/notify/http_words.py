"""Why a request over HTTP has failed, in words that never hold its URL: that can be a secret."""

from __future__ import annotations

import urllib.error


def why_not(error: Exception, limit_s: float) -> str:
    """Words for what urlopen() has raised; `limit_s` is the time-out it was given."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the service answered {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {limit_s:.0f} s"
    if not isinstance(error, urllib.error.URLError):
        return type(error).__name__
    return reason.strerror or type(reason).__name__ if isinstance(reason, OSError) else "no URL"
