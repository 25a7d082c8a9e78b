"""Remove secrets from evidence that is kept, shown or sent: the one table of their forms.

Errs on the side of removing; it never decides what is collected. Files of evidence are written by
write_json() and write_text(), so that nothing gets there around the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from watchdog_train.report.words import safe
from watchdog_train.whole_files import as_json, replace_whole

HIDDEN = "[removed]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PASS = _words("pass passwd pswd password passphrase passcode pwd pw")
_ALWAYS = _PASS - {"pass"} | _words(
    "secret tkn cred credential cookie jwt webhook authorization apprise sessionid notify"
)
_OFTEN = _words("token key pass pat auth basic login")
"""Words of machine learning, too: the other words of a name decide."""
_DOORS = _words(
    "access account admin api auth aws azure bearer bot client comet consumer crypt crypto db dec "
    "decrypt decryption deploy docker enc encrypt encryption gcp gh git github gitlab gl hf hmac "
    "hub huggingface jupyter kaggle license master mlflow mysql neptune npm oauth openai pg pgp "
    "postgres private pypi redis refresh root rsa session shared sign signing slack smtp ssh ssl "
    "storage tls user wandb"
)
"""What a key or a token opens."""
_OF_MODELS = _words(
    "accuracy action add added additional all answer article at attention attn audio augment "
    "augmentation avg back backward band bar batch begin bias blank block bos box budget buffer "
    "bwd by byte cache cached camera caption category char checkpoint choice chosen chunk ckpt "
    "class cls color column com compile compute concept config context conv count cross ctx data "
    "dataset decode decoder default delimiter depth dict dim distill doc document draft drop "
    "dropout emb embed embedding en encoder end entropy eos eot epoch eval expert feature field "
    "file filter final first fn forced forward frame func fusion fwd fx generated glob global go "
    "goal grad graph group gt hash head hidden high hypothesis ids idx ignore image img index "
    "inference infix init input instance instruction jax join json k keep label lang language last "
    "latent layer layernorm len length level limit lm load local log logit lookup lora loss low lr "
    "map mapping mask masked match max mean memory merge merging message metric min missing mixer "
    "mixing mlm model module monitor multi n name new newline next nlp no noise norm not num "
    "number object obs observation one optimizer out output over pad padding pair param partition "
    "passage patch pattern per placeholder point pool pooling pos pose position pred prediction "
    "prefill prefix premise primary prng prob proj projection prompt proposal pruning q qk qkv "
    "query question range rank rate ratio reduction regex register rejected rename reserved "
    "response reward rng rope row sample sampling scheduler score search second seed select self "
    "sentence sep separator seq sequence shape shard shift single size slot sort sos source "
    "speaker special speech split src start stat state step stop sub subword suffix summary "
    "suppress sur system tag target task temporal tensor text tgt think through time title "
    "tokenize tokenizer tool top topk total train transform transformer tres trigger two type "
    "under unexpected unique unit unk url used v val valid validation value video vision visual "
    "vocab weight window with word work"
)
"""What a key, a token or a pass of a model is about."""
_LAST = _words(
    "path file dir folder sock socket region profile name names type mode method length size count "
    "timeout ttl policy error exception warning required enabled backend node host shell attempts "
    "interval provider expiry format version"
)
"""Last words of names that say something about a secret."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_GLUED = re.compile(
    r"\w*(?:passw(?:or)?d|passphrase|passcode)\w*(?P<password>)|"
    r"\w*(?:secret(?!ar)|credential|cookie(?!c)|webhook|apprise)\w*|"
    r"(?P<before>\w+?)(?P<word>pass|pwd|pw|tokens?|tkn|keys?|auth|creds?|pat)"
)
_CONSTANT = re.compile(
    r"[\"']?(?:None|null|true|false|str|bytes|int|bool|Any|Optional\[\w+\])[\"',;)\]}]*",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[\"'(\[{]*[-+]?[\d.,]+(?:e[-+]?\d+)?[kMGB]?(?:/s)?[\"',;)\]}]*")
_SPECIAL = re.compile(r"[\"']?(?:<[^<>\s]{0,80}>|\[[A-Z_]{2,20}\d{0,4}\])[\"',;)\]}]*\Z")
_RANDOM = re.compile(
    r"[\"']?(?=[a-z]{0,60}[0-9+/])(?=[a-z0-9]{0,60}[A-Z])(?=\D{0,60}\d)[A-Za-z0-9+/=]{20}"
)
_DIGIT = re.compile(r"\d")
# What stands between quotes (also escaped ones, as in JSON in JSON), or up to the next space.
_QUOTED = (
    r"[bBrRfFuU]{0,2}(?P<q>\\{0,4}(?:\"\"\"|'''|[\"']))"
    r"(?:(?!(?P=q))(?:\\[^\n]|[^\n])){1,4096}"
)
_LIST = r"[(\[{](?=\s?[bru]?\\{0,4}[\"'])[^()\[\]{}\n]{1,2000}[^\s\"']*"
# 512 characters are judged; all that follow up to the next space are removed with them.
_VALUE = re.compile(rf"{_QUOTED}|{_LIST}|[^\s\"'\\][^\s\"']{{0,512}}")
_END_OF_VALUE = re.compile(r"[\s\"']|\Z")
_NAMED = re.compile(
    r"(?<![\w.-])(?:(?<=\\)[nrt])?(?P<name>[\w.-]{1,160})"
    r"\\{0,4}[\"']?\]?[ \t]{0,4}[=:]>?[ \t]{0,4}"
)
_OPTION_THEN = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{0,160})[ \t]{1,4}(?!-)")
_QUOTED_AFTER = re.compile(
    r"\b(?P<name>pass|pwd|passwd|password|passphrase|passcode|secret|credentials?|pat)"
    r"[ \t]{1,4}(?:(?:is|was)[ \t]{1,4})?(?=\\{0,4}[\"'])",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<name>(?:authorization|cookie2?)\\{0,4}[\"']?[ \t]*[:=,][ \t]*)"
    rf"(?:{_QUOTED}|[^\s\"'\\][^\n\"']*)",
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
    r"\b(?:login|sshpass|mysql\w{0,10}|mariadb|mongo\w{0,9})\b[^\n]{0,120}?\s-p\s{0,4}": (
        r"[^\s\"'-][^\s\"']*"
    ),
    # In sentences.
    r"(?<![\w.-])(?:passw(?:or)?d|passphrase|passcode|secret|token|api key)s?"
    r":?\s+(?:(?:is|was)\s+)?['\"]?": (r"(?=\S{0,200}\d)(?=\S{0,200}[a-z])[\w+=!@#$%^&*~-]{8,}"),
    r"\b(?:with|using)\s+(?:the\s+)?(?:pass|pwd|passw(?:or)?d|passphrase)\s+": (
        r"(?!(?:auth\w*|login|prot\w+|and|or|for|from|is|was|rate|through|of|on|at|in|to|number|"
        r"over|set|hash\w*|manager|file|prompt|given|required)\b)[^\s\"']+"
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
"""Least characters of a value that is searched for everywhere: `true` must not be."""
_NOTHING = re.compile(r"(?!)")


class _Known:
    """Values of variables of this process and of the training whose names look secret."""

    def __init__(self) -> None:
        self.values: frozenset[str] = frozenset()
        self.pattern = _NOTHING


_known = _Known()


def learn(environment: Mapping[str, str]) -> None:
    """From now on remove the values of its secret-looking variables wherever they occur."""
    found = set(_known.values)
    for name, value in environment.items():
        if is_secret_name(name) and not os.path.exists(value):
            urls = value.split() if _kind(name) == "notification" else ()
            for part in (value, *value.splitlines(), *urls):
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


Kind = Literal["password", "secret", "word", "model", "notification"]


@lru_cache(8192)
def _kind(name: str) -> Kind | None:
    """What a value of this name is; `word`: one word alone, `model`: seldom a secret."""
    parts = [part.lower() for part in _PART.findall(name)]
    if not parts or parts[-1] in _LAST or name.strip("-+~") in ("PWD", "OLDPWD"):
        return None
    found = {part: word for part in parts if (word := _secret_word(part)) is not None}
    if parts[0] == "aws" or {"session", "id"} <= {*parts}:
        found["aws"] = "secret"
    if not found:
        return None
    words, others = {*found.values()}, {*parts} - found.keys()
    others |= {part.removesuffix("s") for part in others}
    if words == {"notify"}:
        return "notification"
    if len(words) == 1 and words <= _OFTEN and not others & _DOORS:
        if others & _OF_MODELS or "tokens" in parts or parts == ["keys"]:
            return "model"
        if not others and words <= {"key", "pat", "auth", "basic", "login"}:
            return "word"
    return "password" if words & _PASS else "secret"


def _secret_word(part: str) -> str | None:
    for word in (part, part.removesuffix("s")):
        if word in _ALWAYS or word in _OFTEN:
            return word
    glued = _GLUED.fullmatch(part)
    if glued is None:
        return None
    word, before = (glued["word"] or "").removesuffix("s"), glued["before"] or ""
    if word in ("key", "pat"):
        return word if before in _DOORS else None
    if before in _OF_MODELS or before + word in ("oldpwd", "sacred", "compas"):
        return None
    return "password" if glued["password"] is not None or glued["word"] in _PASS else "secret"


def is_secret_name(name: str) -> bool:
    return _kind(name) not in (None, "model")


def is_secret(name: str, value: str, *, in_text: bool = False) -> bool:
    """Whether the value of a variable, an option or a field is one.

    Args:
        name: of the variable, the option or the field.
        value: as text, also with the quotes around it.
        in_text: it is from a text, where `key: word` is mostly no secret.
    """
    kind = _kind(name)
    if kind is None or not value or _CONSTANT.fullmatch(value):
        return False
    if kind == "password":
        return True
    if kind == "notification":
        return "://" in value
    if _NUMBER.fullmatch(value) or _SPECIAL.match(value):
        return False
    if kind == "model":
        return _RANDOM.match(value) is not None
    looks_like_one = len(value) >= _LONG_ENOUGH and _DIGIT.search(value) is not None
    return kind != "word" or not in_text or looks_like_one


def redact_text(text: str) -> str:
    """The same text without secrets; it keeps its number of lines."""
    text = _known.pattern.sub(HIDDEN, text)
    if "PRIVATE KEY" in text:
        text = "\n".join(_without_keys(text.split("\n")))
    for pattern, to in _TABLE:
        text = pattern.sub(to, text)
    text = _LOGIN.sub(lambda call: _LITERAL_ONLY.sub(rf"\g<q>{HIDDEN}\g<q>", call[0]), text)
    text = _HEADER.sub(rf"\g<name>\g<q>{HIDDEN}", text)
    for pattern in (_OPTION_THEN, _NAMED, _QUOTED_AFTER):
        text = _without_values(text, pattern)
    return _FORTY_HEX.sub(_hide_hex, text)


def _without_values(text: str, pattern: re.Pattern[str]) -> str:
    kept: list[str] = []
    done = at = 0
    while (named := pattern.search(text, at)) is not None:
        at = named.end()
        if _kind(named["name"]) is None or (found := _VALUE.match(text, at)) is None:
            continue
        if is_secret(named["name"], found[0], in_text=pattern is _NAMED):
            kept += [text[done:at], found["q"] or "", HIDDEN]
            done = at = found.end()
            if not found["q"] and (end := _END_OF_VALUE.search(text, at)) is not None:
                done = at = end.start()
    return "".join([*kept, text[done:]])


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
    kept: list[str] = []
    before = ""
    for argument in argv:
        name, equals, _ = argument.partition("=")
        is_option = before.startswith("-") and not _OPTION.fullmatch(argument)
        if is_option and _is_secret_option(before, argument):
            kept.append(HIDDEN)
        elif equals and _is_secret_option(name, argument[len(name) + 1 :]):
            kept.append(f"{name}={HIDDEN}")
        elif before in ("-u", "--user", "--proxy-user") and ":" in argument:
            kept.append(HIDDEN)
        else:
            kept.append(_redact_named(before, argument))
        before = argument
    return tuple(kept)


def _is_secret_option(name: str, value: str) -> bool:
    return re.fullmatch(r"[-+~]*[\w./-]+", name) is not None and is_secret(name, value)


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
        seen[name, value] = HIDDEN if is_secret(name, value) else _redact_named(name, value)
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
    replace_whole(path, safe(redact_text(text)).encode())


learn(os.environ)
