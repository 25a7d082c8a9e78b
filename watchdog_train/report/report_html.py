"""The morning report as one HTML page: no script, nothing from the network, everything escaped."""

from __future__ import annotations

from html import escape

from watchdog_train.report.sections import Document, Section

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #1a7f37; --bad: #b35900 }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #e0a030 } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  max-width: 60rem; overflow-wrap: anywhere }
h1 { font-size: 1.3rem; margin: 0 0 .5rem } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
p { margin: .4rem 0 }
.verdict { font-size: 1.1rem; border-left: .3rem solid var(--bad); padding: .3rem .8rem;
  background: var(--soft) }
.good { border-color: var(--good) }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid var(--line); font-weight: normal }
th { opacity: .7 } .facts th { width: 7rem }
pre { background: var(--soft); padding: .6rem .8rem; margin: .4rem 0; white-space: pre-wrap;
  font: 14px/1.5 ui-monospace, monospace }
.wide { overflow-x: auto } .wide td { min-width: 4rem; overflow-wrap: normal }
.wide td:last-child { min-width: 12rem; overflow-wrap: anywhere }
"""


def report_html(document: Document) -> str:
    """The whole page."""
    body = [f"<h1>{escape(document.title)}</h1>"]
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
        f"<title>{escape(document.title)} - wtrain report</title>\n<style>{_STYLE}</style>\n"
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _section(section: Section) -> list[str]:
    parts = [f"<h2>{escape(section.title)}</h2>"]
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
        title = escape(fold.title)
        parts.append(f"<details><summary>{title}</summary><pre>{lines}</pre></details>")
    return parts


def _row(row: tuple[str, ...], first: str) -> str:
    cells = [f"<{first}>{escape(row[0])}</{first}>"]
    cells += [f"<td>{escape(cell)}</td>" for cell in row[1:]]
    return f"<tr>{''.join(cells)}</tr>"
