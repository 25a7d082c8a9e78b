"""The morning report as one HTML page: no script, nothing from the network, everything escaped."""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path

from watchdog_train.report.sections import Document, Section


def report_html(document: Document) -> str:
    """The whole page."""
    title = escape(document.title)
    body = [f'<h1 dir="auto">{title}</h1>']
    kind = "verdict good" if document.good else "verdict"
    body.append(f'<p class="{kind}">{escape(document.verdict)}</p>')
    for section in document.sections:
        body += _section(section)
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


def _section(section: Section) -> list[str]:
    title = escape(section.title)
    parts = [f"<section><h2>{title}</h2>"]
    if section.minor:
        first = escape(section.paragraphs[0]) if section.paragraphs else ""
        parts = [f'<details class="section"><summary>{title}: {first}</summary>']
    parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
    if section.header:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
        rows = [_row(row, "td") for row in section.rows]
        parts += [f'<div class="wide"><table><tr>{head}</tr>', *rows, "</table></div>"]
    elif section.rows:
        parts += ['<table class="facts">', *[_row(row, "th") for row in section.rows], "</table>"]
    parts += [f"<pre>{escape(line)}</pre>" for line in section.code]
    for fold in section.folds:
        lines = escape("\n".join(fold.lines))
        parts.append(
            f"<details><summary>{escape(fold.title)}</summary><pre>{lines}</pre></details>"
        )
    return [*parts, "</details>" if section.minor else "</section>"]


def _row(row: tuple[str, ...], first: str) -> str:
    cells = [f"<{first}>{escape(row[0])}</{first}>"]
    cells += [f"<td>{escape(cell)}</td>" for cell in row[1:]]
    return f"<tr>{''.join(cells)}</tr>"
