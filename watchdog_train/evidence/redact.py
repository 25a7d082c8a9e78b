"""Takes secrets out of whatever is kept as evidence, shown or sent: the one table of what they are.

Errs on the side of removing; it never decides what is collected. Files of evidence are written by
write_json() and write_text(), so that nothing gets there around the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.whole_files import as_json, replace_whole

HIDDEN = "[removed]"

_WORDS = (
    r"token|secret|passw(?:or)?d|passphrase|passcode|pwd|credential|auth(?!or(?!i[sz]))|cookie|jwt|"
    r"webhook|session[-_]?(?:id|key)|(?:api|private|access|account|encryption|signing)[-_]?key"
)
_SECRET_NAME = re.compile(
    rf"(?:{_WORDS}|[-_.]key\Z|\A(?:key|pw|pass)\Z|[-_]pw\Z|\Aaws_|apprise)", re.IGNORECASE
)
_SECRET_WORD = re.compile(_WORDS, re.IGNORECASE)
_HARMLESS = re.compile(
    r"tokeniz|(?-i:\A(?:OLD)?PWD\Z)|[-_](?:path|file|dir|sock|region|profile)\Z|"
    r"tokens?[-_]?(?:ids?|types?|per|counts?|length|limit|budget|level|class\w*|drop\w*)(?![a-z])|"
    r"(?<![a-z0-9])(?:pad|eos|bos|unk|sep|cls|mask|special|added|image|stop)[-_]tokens?\Z|"
    r"(?<![a-z0-9])(?:max|min|num|n|total|new|mean|avg)[-_]\w*tokens?\Z|"
    r"(?<![\w.])(?:(?:input|output|prompt|completion|train|eval)[-_])?tokens\Z",
    re.IGNORECASE,
)
_CONSTANT = re.compile(
    r"(?:None|null|true|false|str|bytes|int|bool|Any|Optional\[\w+\])[,;)\]}]*", re.IGNORECASE
)
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?[kMGB]?(?:/s)?[,;)\]}]*")
# What stands between quotes (also escaped ones, as in JSON in JSON), or up to the next space.
_QUOTED = (
    r"[bBrRfFuU]{0,2}(?P<q>\\{0,4}(?:\"\"\"|'''|[\"']))"
    r"(?:(?!(?P=q))(?:\\[^\n]|[^\n])){1,4096}"
)
_LIST = r"[(\[{](?=\s?[bru]?\\{0,4}[\"'])[^()\[\]{}\n]{1,2000}[^\s\"']*"
_VALUE = rf"(?P<value>{_QUOTED}|{_LIST}|[^\s\"'\\][^\s\"']*)"
_NAME = rf"[\w.-]{{0,128}}(?:{_WORDS}|[-_.]key\b)[\w.-]{{0,32}}"
_ASSIGNMENT = re.compile(
    rf"(?P<name>(?<![\w.-]){_NAME})(?P<is>\\{{0,4}}[\"']?[ \t]{{0,4}}[=:]>?[ \t]{{0,4}}){_VALUE}",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"(?P<name>(?<![\w-])--?(?:{_NAME}|pw|pass|key))(?P<is>[ \t]{{1,4}}|=)(?!-){_VALUE}",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<name>(?:authorization|cookie2?)\\{0,4}[\"']?[ \t]*[:=,][ \t]*)"
    rf"(?P<value>{_QUOTED}|[^\s\"'\\][^\n\"']*)",
    re.IGNORECASE,
)
_LITERAL = rf"{_QUOTED}(?P=q)?"
_LOGIN = re.compile(
    r"(?:log_?in|sign_?in|authenticate|set_api_key|auth=)"
    rf"\((?:{_LITERAL}|[^()\"'\\]|\\[a-z]){{1,400}}",
    re.IGNORECASE,
)
_LITERAL_ONLY = re.compile(_LITERAL)
_AFTER = {
    # In URLs: logins, parameters, addresses that are secrets themselves.
    r"\b[a-z][a-z0-9+.-]{1,20}://": (r"(?:[^\s/@]{1,512}|[^\s/:@]{0,256}:[^\s\"'<>]{1,512})(?=@)"),
    r"[?&](?:sig(?:nature)?|key|code|pass|pw|x-amz-[\w-]+)=": r"[^&\s\"']+",
    r"://(?:[^\s\"'<>/]{0,120}hooks?\b[^\s\"'<>/]{0,120}|[^\s\"'<>]{1,200}?/[\w.-]{0,32}hooks?|"
    r"ntfy\.sh|hc-ping\.com|[\w.-]{0,20}ifttt\.com)/": r"[^\s\"'<>]+",
    r"\b(?:apprise|discord|gotify|mailto|matrix|msteams|ntfy|pbul|pover|pushover|signal|slack|"
    r"teams|tgram|twilio|workflows)s?://": r"[^\s\"'<>]+",
    # In command lines and headers.
    r"(?<![\w-])(?:-u|--user|--proxy-user)[ =]+[^\s:\"']{1,64}:": r"[^\s\"']+",
    r"(?:bearer|basic(?=\s+(?-i:\S{0,200}(?:[0-9=]|[a-z][A-Z]))))\s+": r"[\w.~+/=-]{8,}",
    r"\b(?:login|sshpass|mysql\w{0,10})\b[^\n]{0,120}?\s-p\s{0,4}": r"[^\s\"'-][^\s\"']*",
    # In JSON that a service gives for its own login, and in sentences.
    r"[\"']key\\{0,4}[\"']: ?\\{0,4}[\"']": r"(?=[^\"']{0,200}\d)[\w+/=-]{20,}",
    r"\b(?:passw(?:or)?d|passphrase|passcode|secret|token|api key)s?:?\s+(?:(?:is|was)\s+)?": (
        r"(?=\S{0,200}\d)(?=\S{0,200}[a-z])[\w+=!@#$%^&*~-]{8,}"
    ),
}
_SHAPES = (
    r"(?-i:hf_|api_org_)\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|"
    r"gl(?:pat|dt|ptt|rt|ft)-[\w-]{16,}|"
    r"(?:sk|pk|rk)[-_](?:live|test)[-_]\w{10,}|sk-[\w-]{20,}|xai-\w{20,}|gsk_\w{20,}|pplx-\w{20,}|"
    r"nvapi-[\w-]{20,}|r8_\w{20,}|wandb_v\d_\w{20,}|lsv2_\w{20,}|pcsk_\w{20,}|"
    r"(?-i:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{16,}|"
    r"xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|\d{6,12}:[\w-]{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|"
    r"npm_\w{30,}|pypi-[\w-]{30,}|dckr_pat_[\w-]{20,}|do[opr]_v1_\w{30,}|dapi[0-9a-f]{32}|"
    r"hv[sb]\.[\w-]{20,}|tskey-[\w-]{16,}|sbp_\w{30,}|lin_api_\w{20,}|KGAT_\w{20,}|"
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}|eyJ[\w+/-]{40,}={0,2}|AGE-SECRET-KEY-1\w{30,}"
)
_TABLE = [
    (re.compile(rf"(?P<name>{before}){secret}", re.IGNORECASE), rf"\g<name>{HIDDEN}")
    for before, secret in _AFTER.items()
]
_TABLE.append((re.compile(rf"(?:(?<![^\W_])|(?<=\\[nrt]))(?:{_SHAPES})", re.IGNORECASE), HIDDEN))
# Keys of wandb are 40 hex digits, and so are names of commits: those say so, or are in a path.
_FORTY_HEX = re.compile(r"(?<![0-9a-fA-F])[0-9a-f]{40}(?![0-9a-fA-F])")
_COMMIT = re.compile(
    r"(?:[/\\@]|(?:commit|revision|rev|sha-?1?|hash|head|tree|parent|merge|snapshot|digest|etag|"
    r"checksum|branch|git)\W{0,4}(?:(?:is )?(?:now )?(?:id|is|to|at)\W{1,3})?)\Z",
    re.IGNORECASE,
)
_KEY_BEGIN = re.compile(r"-----BEGIN[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_KEY_END = re.compile(r"-----END[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16}|\A\W*\Z|Proc-Type: ")
_KEY_LINES = 400
_FOLLOWED = ("dir", "where")
"""Fields of answers with the path of a bundle, which the supervisor opens."""
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(?:=.*)?", re.DOTALL)
_LONG_ENOUGH = 8
"""Characters of a value that may be looked for everywhere: `true` may not."""
_NOTHING = re.compile(r"(?!)")


class _Known:
    """Values of variables of this process and of the training whose names look secret."""

    def __init__(self) -> None:
        self.values: frozenset[str] = frozenset()
        self.pattern = _NOTHING


_known = _Known()


def learn(environment: Mapping[str, str]) -> None:
    """Remove the values of its secret-looking variables from now on, wherever they occur."""
    found = set(_known.values)
    for name, value in environment.items():
        if is_secret_name(name):
            for part in (value, *value.splitlines()):
                found.update(text for text in _written(part) if len(text) >= _LONG_ENOUGH)
    if found != _known.values:
        _known.values = frozenset(found)
        longest_first = sorted(found, key=len, reverse=True)
        _known.pattern = re.compile("|".join(map(re.escape, longest_first)))


def _written(value: str) -> tuple[str, ...]:
    """As it is, in a URL, in JSON."""
    import json  # not at the top: milliseconds that a command does not need
    from urllib.parse import quote

    in_url = quote(value, safe="", errors="surrogateescape")
    return value.strip(), in_url, json.dumps(value)[1:-1]


def is_secret_name(name: str) -> bool:
    """Whether a variable, an option or a field of this name may hold a secret."""
    return _SECRET_NAME.search(name) is not None and _HARMLESS.search(name) is None


def redact_text(text: str) -> str:
    """The same text without secrets; it keeps its number of lines."""
    text = _known.pattern.sub(HIDDEN, text)
    if "PRIVATE KEY" in text:
        text = "\n".join(_without_keys(text.split("\n")))
    for pattern, to in _TABLE:
        text = pattern.sub(to, text)
    text = _LOGIN.sub(lambda call: _LITERAL_ONLY.sub(rf"\g<q>{HIDDEN}\g<q>", call[0]), text)
    text = _HEADER.sub(_hide_value, text)
    text = _FLAG.sub(_hide_value, text)
    text = _ASSIGNMENT.sub(_hide_value, text)
    return _FORTY_HEX.sub(_hide_hex, text)


def _hide_value(match: re.Match[str]) -> str:
    groups = match.groupdict()
    name, value = groups["name"], groups["value"]
    if _HARMLESS.search(name) or _CONSTANT.fullmatch(value):
        return match[0]
    if "token" in name.lower() and _NUMBER.fullmatch(value):
        return match[0]
    if not _SECRET_WORD.search(name) and (len(value) < _LONG_ENOUGH or not re.search(r"\d", value)):
        return match[0]  # some key: of a table, not of a door
    return f"{name}{groups.get('is') or ''}{groups['q'] or ''}{HIDDEN}"


def _hide_hex(match: re.Match[str]) -> str:
    text, begin, end = match.string, match.start(), match.end()
    is_commit = _COMMIT.search(text[max(0, begin - 24) : begin]) or text[end : end + 1] == "/"
    return match[0] if is_commit else HIDDEN


def _without_keys(lines: list[str]) -> list[str]:
    """Private keys of several lines, of which the beginning or the end may be cut off."""
    kept: list[str] = []
    left = 0
    """Lines that belong to a key still."""
    for at, line in enumerate(lines):
        begin, end = _KEY_BEGIN.search(line), _KEY_END.search(line)
        if begin is not None and end is not None and begin.start() < end.start():
            kept.append(f"{line[: begin.start()]}{HIDDEN}{redact_text(line[end.end() :])}")
        elif begin is not None:
            kept.append(f"{line[: begin.start()]}{HIDDEN}")
            following = lines[at + 1 : at + 1 + _KEY_LINES]
            whole = (n for n, text in enumerate(following, 1) if _KEY_END.search(text))
            part = (n for n, text in enumerate(following) if not _KEY_LINE.search(text))
            left = next(whole, None) or next(part, len(following))
        elif end is not None:
            for back in range(len(kept) - 1, max(-1, len(kept) - 1 - _KEY_LINES), -1):
                if not _KEY_LINE.search(kept[back]):
                    break
                kept[back] = HIDDEN
            kept.append(f"{HIDDEN}{line[end.end() :]}")
            left = 0
        elif left > 0:
            kept.append(HIDDEN)
            left -= 1
        else:
            kept.append(line)
    return kept


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of secret-looking options."""
    kept: list[str] = []
    before = ""
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if before.startswith("-") and _is_secret_option(before) and not _OPTION.fullmatch(argument):
            kept.append(HIDDEN)
        elif equals and _is_secret_option(name):
            kept.append(f"{name}={HIDDEN}")
        elif before in ("-u", "--user", "--proxy-user") and ":" in argument:
            kept.append(HIDDEN)
        else:
            kept.append(_redact_named(before, argument))
        before = argument
    return tuple(kept)


def _is_secret_option(name: str) -> bool:
    return re.fullmatch(r"[-+~]*[\w./-]+", name) is not None and is_secret_name(name.lstrip("-+~"))


def _redact_named(name: str, text: str) -> str:
    is_commit = _FORTY_HEX.fullmatch(text) and _COMMIT.search(f"{name} ")
    return text if is_commit else redact_text(text)


def redact_environment(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Values of the named variables only; a secret-looking one keeps its name alone."""
    kept = {name: environment[name] for name in sorted(set(names) & environment.keys())}
    return redact_data(kept)  # type: ignore[no-any-return]


def redact_data(value: Any) -> Any:
    """The same data as dicts, lists and plain values, its texts without secrets."""
    return _redacted(msgspec.to_builtins(value), "", {})


def _redacted(value: Any, name: str, seen: dict[tuple[str, str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _redacted(each, str(key), seen) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if name in ("argv", "command") and all(isinstance(each, str) for each in value):
            return list(redact_argv(value))
        return [_redacted(each, name, seen) for each in value]
    if not isinstance(value, str) or name in _FOLLOWED:
        return value
    if (name, value) not in seen:  # the same frames stand in every stack
        hidden = value and is_secret_name(name)
        seen[name, value] = HIDDEN if hidden else _redact_named(name, value)
    return seen[name, value]


def write_json(path: Path, value: Any) -> None:
    """A file of evidence, for programs.

    Raises:
        OSError: it cannot be written.
    """
    replace_whole(path, msgspec.json.format(as_json(redact_data(value)), indent=2))


def write_text(path: Path, text: str) -> None:
    """A file of evidence, for people.

    Raises:
        OSError: it cannot be written.
    """
    replace_whole(path, redact_text(text).encode("utf-8", "replace"))


learn(os.environ)
