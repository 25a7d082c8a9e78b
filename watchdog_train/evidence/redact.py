"""Removes secrets from what a bundle keeps: environments, command lines, URLs and log lines.

Errs on the side of removing; it never decides what is collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

HIDDEN = "[removed]"

_WORDS = r"token|api[-_]?key|secret|password|passwd|credential|private[-_]?key|access[-_]?key"
_SECRET_NAME = re.compile(rf"(?:{_WORDS}|_key\Z|\Akey\Z|\Aaws_|auth|apprise)", re.IGNORECASE)
_NOT_SECRET = frozenset(
    {
        "TOKENIZERS_PARALLELISM", "WTRAIN_TOKEN_FILE",
    }
)  # fmt: skip
_SECRET_FLAG = re.compile(
    rf"\A--?[\w.-]*(?:{_WORDS}|[-_.]key\Z|\A--?key\Z)[\w.-]*\Z", re.IGNORECASE
)
_HARMLESS_FLAG = re.compile(
    r"tokenizer|max[-_]?\w*tokens?|num[-_]?\w*tokens?|tokens?[-_]per", re.IGNORECASE
)
_URL_LOGIN = re.compile(r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://)[^\s/@]{1,512}@")
_URL_SECRET = re.compile(
    r"(?P<name>[?&](?:sig|signature|token|key|api[-_]?key|secret|password|access[-_]token|"
    r"x-amz-(?:signature|credential|security-token))=)[^&\s\"']+",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    rf"(?P<name>\b[\w.-]{{0,64}}(?:{_WORDS})[\w-]{{0,32}}[\"']?\s{{0,4}}[=:]\s{{0,4}}[\"']?)"
    r"(?P<value>[^\s\"',;&]{6,})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_KNOWN_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[\w-]{20,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}|glpat-[\w-]{16,}|AIza[\w-]{30,}|"
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return name not in _NOT_SECRET and _SECRET_NAME.search(name) is not None


def redact_text(text: str) -> str:
    """A line without logins in URLs, values of secret-looking names, and known token shapes."""
    text = _URL_LOGIN.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _URL_SECRET.sub(rf"\g<name>{HIDDEN}", text)
    text = _KNOWN_SHAPES.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\g<name>{HIDDEN}", text)
    return _ASSIGNMENT.sub(_hide_value, text)


def _hide_value(match: re.Match[str]) -> str:
    if _HARMLESS_FLAG.search(match["name"]) or match["value"].startswith(HIDDEN):
        return match[0]
    return f"{match['name']}{HIDDEN}"


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of secret-looking flags."""
    result: list[str] = []
    hide_next = False
    for argument in argv:
        flag, equals, _ = argument.partition("=")
        secret = bool(_SECRET_FLAG.match(flag)) and not _HARMLESS_FLAG.search(flag)
        if hide_next and not argument.startswith("-"):
            result.append(HIDDEN)
            hide_next = False
        elif secret and equals:
            result.append(f"{flag}={HIDDEN}")
        else:
            result.append(redact_text(argument))
            hide_next = secret
    return tuple(result)


def redact_environment(environment: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Values of the named variables only; a secret-looking one keeps its name alone."""
    return {
        name: HIDDEN if is_secret_name(name) else redact_text(environment[name])
        for name in sorted(set(names) & environment.keys())
    }
