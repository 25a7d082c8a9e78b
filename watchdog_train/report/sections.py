"""A report as data, and how a terminal and an HTML page show it.

The page has no script, needs nothing from the network, and everything in it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from itertools import zip_longest
from pathlib import Path

from watchdog_train.core.model import Value
from watchdog_train.report import words
from watchdog_train.report.words import PLAIN, Paint, Style

MAX_COLUMN = 48


class Fold(Value):
    """Lines under a title of their own."""

    title: str
    lines: tuple[str, ...]


class Section(Value):
    """A title and what stands under it, in this order."""

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()
    """Lines to copy."""
    folds: tuple[Fold, ...] = ()
    """Longer lists, closed on the page until they are opened; the text leaves them out."""
    minor: bool = False
    """One of many alike: a page shows its title, and the rest when it is opened."""


class Page(Value):
    """A report."""

    title: str
    verdict: str
    good: bool
    sections: tuple[Section, ...]


def report_text(page: Page, *, paint: Paint = PLAIN, width: int | None = 100) -> str:
    """The report, without a newline at its end."""
    style: Style = "good" if page.good else "warn"
    lines = [paint(page.title, "strong"), ""]
    lines += [paint(line, style) for line in words.wrap(page.verdict, width)]
    for section in page.sections:
        lines += ["", paint(section.title, "strong")]
        lines += _text_section(section, width)
    return "\n".join(lines)


def _text_section(section: Section, width: int | None) -> list[str]:
    room = None if width is None else width - 2
    lines = [f"  {line}" for text in section.paragraphs for line in words.wrap(text, room)]
    header = [section.header] if section.header else []
    lines += [f"  {line}" for line in _table([*header, *section.rows], room)]
    return lines + [f"    {line}" for line in section.code]


def _table(rows: list[tuple[str, ...]], width: int | None) -> Iterator[str]:
    """The last column is wrapped to what the others leave of the width; None: not wrapped."""
    *others, _ = zip(*rows, strict=True) if rows else ((),)
    wide = [min(MAX_COLUMN, max(map(words.display_width, cells))) for cells in others]
    if width is not None:
        # Text columns give way to the last one until the row fits.
        while sum(wide) + 2 * len(wide) > width - 24 and max(wide) > 12:
            wide[wide.index(max(wide))] -= 1
    rest = None if width is None else max(20, width - sum(wide) - 2 * len(wide))
    for row in rows:
        cells = [words.wrap(cell, size) for cell, size in zip(row, [*wide, rest], strict=True)]
        for *left, last in zip_longest(*cells, fillvalue=""):
            yield "  ".join([*map(words.pad, left, wide), last]).rstrip()


def report_html(page: Page) -> str:
    """The whole page."""
    title = escape(page.title)
    body = [f'<h1 dir="auto">{title}</h1>']
    kind = "verdict good" if page.good else "verdict"
    body.append(f'<p class="{kind}">{escape(page.verdict)}</p>')
    for section in page.sections:
        body += _html_section(section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Even if something slipped through the escaping, nothing may run or be fetched.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title} - wtrain report</title>\n<style>\n{_style()}</style>\n"
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text("utf-8")


def _html_section(section: Section) -> list[str]:
    title = escape(section.title)
    parts = [f"<section><h2>{title}</h2>"]
    if section.minor:
        first = escape(section.paragraphs[0]) if section.paragraphs else ""
        parts = [f'<details class="section"><summary>{title}: {first}</summary>']
    parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
    if section.header:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
        rows = [_html_row(row, "td") for row in section.rows]
        parts += [f'<div class="wide"><table><tr>{head}</tr>', *rows, "</table></div>"]
    elif section.rows:
        parts += [
            '<table class="facts">',
            *[_html_row(row, "th") for row in section.rows],
            "</table>",
        ]
    parts += [f"<pre>{escape(line)}</pre>" for line in section.code]
    for fold in section.folds:
        lines = escape("\n".join(fold.lines))
        parts.append(
            f"<details><summary>{escape(fold.title)}</summary><pre>{lines}</pre></details>"
        )
    return [*parts, "</details>" if section.minor else "</section>"]


def _html_row(row: tuple[str, ...], first: str) -> str:
    cells = [f"<{first}>{escape(row[0])}</{first}>"]
    cells += [f"<td>{escape(cell)}</td>" for cell in row[1:]]
    return f"<tr>{''.join(cells)}</tr>"
