"""The morning report as one HTML page: no script, nothing from the network, everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

from watchdog_train.report.lanes import Box, Lanes
from watchdog_train.report.sections import Document, Section
from watchdog_train.report.series import AttemptSeries
from watchdog_train.report.words import duration, number

_CURVES = (
    ("step", "Step", "The step that every rank had reached."),
    ("gpu_util", "GPU utilisation", "Of the busiest GPU of the job, in percent."),
    ("cpu_cores", "CPU cores in use", "By the whole tree of processes."),
)
_COLOURS = ("#3b7dd8", "#d97706", "#2f9e63", "#9d5bd2", "#c2485a", "#1797a6")
_WIDE, _HIGH = 1000, 120
"""Of a curve, in units of its own: the page stretches it."""


def report_html(
    document: Document, *, lanes: Lanes | None = None, series: Sequence[AttemptSeries] = ()
) -> str:
    """The whole page."""
    title = escape(document.title)
    body = [f'<h1 dir="auto">{title}</h1>']
    kind = "verdict good" if document.good else "verdict"
    body.append(f'<p class="{kind}">{escape(document.verdict)}</p>')
    if lanes is not None:
        body += _timeline(lanes)
    for field, name, note in _CURVES:
        body += _curve(series, field, name, note)
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


def _timeline(lanes: Lanes) -> list[str]:
    ticks = "".join(
        f'<span class="tick" style="left:{left}%">{escape(words)}</span>'
        for left, words in lanes.ticks
    )
    parts = [
        "<section><h2>Timeline</h2>",
        f"<p>{lanes.left_out} earlier attempts are not drawn.</p>" if lanes.left_out else "",
        f'<div class="lane ticks"><span class="name"></span><div class="bar">{ticks}</div></div>',
    ]
    for lane in lanes.lanes:
        boxes = "".join(_box("i", box) for box in (*lane.boxes, *lane.phases))
        marks = "".join(_box("b", box) for box in lane.marks)
        parts.append(
            f'<div class="lane"><span class="name">{escape(lane.name)}</span>'
            f'<div class="bar">{boxes}{marks}</div></div>'
        )
    legend = "".join(
        f'<span><i class="{escape(style)}"></i>{escape(words)}</span>'
        for style, words in lanes.legend
    )
    return [
        *parts,
        f'<p class="legend">{legend}<span><b></b>stall, crash or dump</span></p></section>',
    ]


def _box(tag: str, box: Box) -> str:
    place = f"left:{box.left}%" + (f";width:{box.width}%" if tag == "i" else "")
    return (
        f'<{tag} class="{escape(box.style)}" style="{place}" title="{escape(box.words)}"></{tag}>'
    )


def _curve(series: Sequence[AttemptSeries], field: str, name: str, note: str) -> list[str]:
    """One line an attempt, from 0 up to the largest value; nothing where nothing was recorded."""
    lines = []
    for each in series:
        points = [(one.t, getattr(one, field)) for one in each.points]
        told = [(t, value) for t, value in points if value is not None]
        if told:
            lines.append((each.attempt, told))
    if not lines:
        return []
    begin = min(told[0][0] for _, told in lines)
    long_s = max(max(told)[0] for _, told in lines) - begin or 1.0
    most = max(value for _, told in lines for _, value in told) or 1.0
    drawn = "".join(
        f'<polyline stroke="{_COLOURS[(attempt - 1) % len(_COLOURS)]}" points="'
        + " ".join(
            f"{_WIDE * (t - begin) / long_s:.1f},{_HIGH * (1 - value / most):.1f}"
            for t, value in told
        )
        + '"/>'
        for attempt, told in lines
    )
    words = f"{note} 0 to {number(round(most, 1))} over {duration(long_s)}, a colour an attempt."
    figure = f'<figure><figcaption><h2>{name}</h2><p class="note">{words}</p></figcaption>'
    box = f'viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none"'
    return [f"{figure}<svg {box}>{drawn}</svg></figure>"]
