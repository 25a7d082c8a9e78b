"""Settings as text: the commented file, the explanation of one key, the page of all keys.

Must not read or write a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from watchdog_train.config import schema
from watchdog_train.config.presets import PRESETS
from watchdog_train.config.schema import Setting
from watchdog_train.core.policy import Policy
from watchdog_train.errors import WtrainError

_WIDTH = 98
HIDDEN_URL = "[removed]"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z_-]*")


def dump_policy(
    policy: Policy, *, heading: str = "Settings of a wtrain run.", reasons: Mapping[str, str] = {}
) -> str:
    """The complete file, each setting with its meaning, unit and reason.

    `heading`: its first comment. `reasons`: why a value differs from its default, by key.
    """
    values = shown_values(policy)
    lines = [*_comment(heading, ""), "# Times take 90, 90s, 10m or 2h.", ""]
    for key, section in in_order():
        indent = "  " * key.count(".")
        name = key.rpartition(".")[2]
        if section is not None:
            lines += [*([""] if not key.count(".") else []), *_comment(section, indent)]
            lines.append(f"{indent}{name}:")
            continue
        setting = schema.settings()[key]
        lines += _comment(_described(setting), indent)
        if values[key] != setting.default:
            because = f": {reasons[key]}" if key in reasons else ""
            changed = f"Changed from {scalar(setting.default)}{because}."
            lines += _comment(changed, indent)
        lines.append(f"{indent}{name}: {scalar(values[key])}")
    return "\n".join(lines) + "\n"


def shown_values(policy: Policy) -> dict[str, Any]:
    """All values by key; of notification URLs only the scheme: they are secrets."""
    urls = tuple(f"{url.partition('://')[0]}://{HIDDEN_URL}" for url in policy.notify.urls)
    return {**schema.flatten(policy), "notify.urls": urls}


def explain(key: str) -> str:
    """One setting or section in words; "" lists everything. WtrainError: no such key."""
    if setting := schema.settings().get(key):
        return "\n".join(_explained(setting))
    if key in schema.sections():
        prefix = f"{key}." if key else ""
        rows = [each for each in schema.settings().values() if each.key.startswith(prefix)]
        width = max(len(each.key) for each in rows)
        heading = [schema.sections()[key], ""]
        return "\n".join(heading + [f"{r.key:<{width}}  {scalar(r.default)}" for r in rows])
    named = [each for each in schema.settings().values() if each.name == key]
    if named:
        return "\n\n".join("\n".join(_explained(each)) for each in named)
    near = schema.closest(key, [*schema.settings(), *schema.sections()])
    near = near or schema.closest(key, [each.name for each in schema.settings().values()])
    raise WtrainError(
        f"'{key[:80]}' is not a setting",
        hint=f"did you mean '{near}'?" if near else "wtrain config explain lists all settings",
        reference="config-unknown-key",
    )


def scalar(value: Any) -> str:
    """A value as YAML writes it on one line."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_quoted(each) for each in value) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    # Words that YAML 1.1 reads as truth values need quotes.
    truth = value.lower() in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
    return _quoted(value) if truth or not _PLAIN.fullmatch(value) else value


def _quoted(text: str) -> str:
    """A YAML text in double quotes; JSON's rules alone leave characters that YAML refuses."""
    return "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}"
        for each in json.dumps(text, ensure_ascii=False)
    )


def in_order(*, with_root: bool = False) -> Iterator[tuple[str, str | None]]:
    """Sections (with their text) and settings (with None), in the order of the file."""
    if with_root:
        yield "", schema.sections()[""]
    left = {key: text for key, text in schema.sections().items() if key}
    for key in schema.settings():
        for section in [each for each in left if key.startswith(f"{each}.")]:
            yield section, left.pop(section)
        yield key, None


def _described(setting: Setting) -> str:
    unit = f"[{setting.unit}] " if setting.unit else ""
    bounds = f" ({setting.wanted})" if setting.kind in {"choice", "whole number"} else ""
    return f"{unit}{setting.text}{bounds}"


def _explained(setting: Setting) -> list[str]:
    lines = [setting.key, f"  {setting.text}", f"  value:   {setting.wanted}"]
    if setting.unit:
        lines.append(f"  unit:    {setting.unit}")
    lines.append(f"  default: {scalar(setting.default)}")
    if setting.flag:
        lines.append(f"  flag:    {setting.flag} (or {setting.variable})")
    for name, preset in PRESETS.items():
        if setting.key in preset.changes:
            value, why = preset.changes[setting.key]
            lines.append(f"  preset {name}: {scalar(value)} ({why})")
    return lines


def _comment(text: str, indent: str) -> list[str]:
    lines = [f"{indent}#"]
    for word in text.split():  # textwrap takes ten times as long, at the start of every run
        if len(lines[-1]) + 1 + len(word) > _WIDTH:
            lines.append(f"{indent}#")
        lines[-1] += f" {word}"
    return lines
