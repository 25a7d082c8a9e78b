"""The morning report for a terminal or a file of plain text. Pure."""

from __future__ import annotations

from watchdog_train.report import words
from watchdog_train.report.sections import Document, Section
from watchdog_train.report.words import PLAIN, Paint, Style

MAX_COLUMN = 48


def report_text(document: Document, *, paint: Paint = PLAIN, width: int | None = 100) -> str:
    """The report, without a newline at its end."""
    style: Style = "good" if document.good else "warn"
    lines = [paint(document.title, "strong"), ""]
    lines += [paint(line, style) for line in words.wrap(document.verdict, width)]
    for section in document.sections:
        lines += ["", paint(section.title, "strong")]
        lines += _section(section, width)
    return "\n".join(lines)


def _section(section: Section, width: int | None) -> list[str]:
    room = None if width is None else width - 2
    lines = [f"  {line}" for text in section.paragraphs for line in words.wrap(text, room)]
    if section.rows:
        lines += [f"  {line}" for line in _table(section, room)]
    lines += [f"    {line}" for line in section.code]
    return lines


def _table(section: Section, width: int | None) -> list[str]:
    rows = ([section.header] if section.header else []) + list(section.rows)
    columns = len(rows[0])
    wide = [
        min(MAX_COLUMN, max(words.display_width(row[i]) for row in rows)) for i in range(columns)
    ]
    last = columns - 1
    if width is not None:
        # Text columns give way to the last one until the row fits.
        while sum(wide[:last]) + 2 * last > width - 24 and max(wide[:last]) > 12:
            wide[wide.index(max(wide[:last]))] -= 1
    lines = []
    for row in rows:
        left = [words.wrap(cell, size) for cell, size in zip(row[:last], wide, strict=False)]
        used = sum(wide[:last]) + 2 * last
        right = words.wrap(row[last], None if width is None else max(20, width - used))
        for i in range(max(len(cell) for cell in [*left, right])):
            cells = [
                words.pad(_part(cell, i), size) for cell, size in zip(left, wide, strict=False)
            ]
            lines.append("  ".join([*cells, _part(right, i)]).rstrip())
    return lines


def _part(cell: tuple[str, ...], i: int) -> str:
    return cell[i] if i < len(cell) else ""
