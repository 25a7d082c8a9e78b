"""The morning report as Markdown, for an issue or a wiki. Pure.

Untrusted text is escaped so that it cannot become a heading, a link, HTML or a mention, whichever
dialect renders it: some have no escape for `<`, and some render nothing inside of <details>.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from watchdog_train.report.sections import Document, Section

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~$])")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINE_START = re.compile(r"^(\s*)([#+\->=]|\d+[.)])")


def report_markdown(document: Document) -> str:
    """The whole report, with a newline at its end."""
    lines = [f"# {escaped(document.title)}", "", f"**{escaped(document.verdict)}**", ""]
    for section in document.sections:
        lines += [f"## {escaped(section.title)}", "", *section_lines(section)]
    return "\n".join(lines).rstrip("\n") + "\n"


def section_lines(section: Section) -> list[str]:
    """What stands under the title of a section; each block ends with an empty line."""
    lines: list[str] = []
    for text in section.paragraphs:
        lines += [escaped(text), ""]
    if section.rows:
        header = section.header or ("", *["" for _ in section.rows[0][1:]])
        lines += [_row(header), _row(["---"] * len(header), plain=True)]
        lines += [*[_row(row) for row in section.rows], ""]
    if section.code:
        lines += [*fenced(section.code), ""]
    for fold in section.folds:
        lines += ["<details>", f"<summary>{escaped(fold.title)}</summary>", ""]
        lines += [*fenced(fold.lines), "", "</details>", ""]
    return lines


def escaped(text: str) -> str:
    """Text as it is, whatever characters it has."""
    text = _SPECIAL.sub(r"\\\1", html.escape(text, quote=False))
    # An @ or # before a word would tell a person or link an issue where it is posted.
    text = re.sub(r"([@#])(?=\w)", "\\1\u200b", text)
    return _LINE_START.sub(r"\1\\\2", text)


def without_markup(text: str) -> str:
    """Markdown that is ours, and the words of a training in it without HTML and links."""
    return _TAG.sub("&lt;", text).replace("](", "]\\(")


def fenced(lines: Sequence[str]) -> list[str]:
    """Lines as a code block, whose fence is longer than any in them; with a `<` as HTML."""
    if any("<" in line for line in lines):
        return ["<pre>", *(html.escape(line, quote=False) for line in lines), "</pre>"]
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def _row(cells: Sequence[str], *, plain: bool = False) -> str:
    return f"| {' | '.join(cells if plain else [escaped(cell) for cell in cells])} |"
