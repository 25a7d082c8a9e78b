"""The morning report as a page with a timeline and charts; needs jinja2.

Nothing is fetched from the network: plotly's script is inside, or a file beside the page.
"""

from __future__ import annotations

from datetime import tzinfo
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import watchdog_train.report
from watchdog_train.report.charts import charts, charts_json
from watchdog_train.report.history import History
from watchdog_train.report.lanes import lanes
from watchdog_train.report.sections import Document
from watchdog_train.report.time_section import Found

if TYPE_CHECKING:
    import jinja2

SCRIPT_FILE = "plotly.min.js"


def page(
    document: Document,
    history: History,
    found: Found,
    *,
    nonce: str,
    version: str,
    script: str | None,
    script_beside: bool,
    zone: tzinfo | None = None,
) -> str:
    """The whole page.

    Args:
        document: what it says.
        history: for the timeline.
        found: for the charts.
        nonce: random; only scripts that carry it may run.
        version: of wtrain.
        script: plotly's, to be put inside; None: it is not put inside.
        script_beside: it lies beside the page as SCRIPT_FILE.
        zone: for times of day.

    Raises:
        ImportError: jinja2 is not installed.
    """
    from markupsafe import Markup

    drawn = charts(history.state, found.series, zone=zone)
    words = None
    if drawn and script is None and not script_beside:
        words = "Charts need plotly: pip install 'watchdog-train[report]', then wtrain report."
        drawn = ()
    return _template().render(
        document=document,
        lanes=lanes(history, zone=zone),
        charts=drawn,
        chart_words=words,
        # Both are ours: JSON without a character that could end its element, and plotly's file.
        figures=Markup(charts_json(drawn)),  # noqa: S704
        script=Markup(_inside(script)) if script is not None else None,  # noqa: S704
        script_name=SCRIPT_FILE,
        style=Markup(_part("page.css")),  # noqa: S704
        nonce=nonce,
        version=version,
    )


def _inside(script: str) -> str:
    """A script that cannot end the element it is in."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _template() -> jinja2.Template:
    import jinja2

    made = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return made.from_string(_part("page.html.j2"))


def _part(name: str) -> str:
    return (files(watchdog_train.report) / name).read_text("utf-8")
