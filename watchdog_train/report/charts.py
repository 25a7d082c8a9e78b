"""The charts of the page as plotly's own JSON, made without plotly: its script draws them. Pure.

Only numbers and words of ours go in: plotly takes some HTML in labels for markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value
from watchdog_train.report.series import AttemptSeries
from watchdog_train.report.words import clean

MOST_MARKS = 100
_COLOURS = ("#3b7dd8", "#d97706", "#2f9e63", "#9d5bd2", "#c2485a", "#1797a6")
_USE = (
    ("gpu_util", "GPU utilisation", "Of the busiest GPU of the job, in percent, as NVML tells it."),
    ("gpu_power", "GPU power", "As a share of the same GPU's limit."),
    ("cpu_cores", "CPU cores in use", "By the whole tree of processes."),
)
_GREY = "#808080"
_LINE = "rgba(128,128,128,0.25)"


class Chart(Value, frozen=True, kw_only=True):
    """One chart."""

    title: str
    note: str
    figure: dict[str, Any]
    """`data` and `layout` as plotly takes them."""


def charts(
    state: State, series: Sequence[AttemptSeries], *, zone: tzinfo | None = None
) -> tuple[Chart, ...]:
    """All charts for which anything was recorded."""
    begin = state.started_at or 0.0
    found = [
        _over_time(
            series,
            "step",
            title="Steps over time",
            note="The step that every rank had reached; dashed lines are stalls and crashes.",
            begin=begin,
            zone=zone,
            marks=_marks(state, zone),
        ),
        _step_times(series),
        *(
            _over_time(series, field, title=title, note=note, begin=begin, zone=zone)
            for field, title, note in _USE
        ),
    ]
    return tuple(chart for chart in found if chart is not None)


def charts_json(found: Sequence[Chart]) -> str:
    """The figures for a script element: nothing in it can end the element or begin another."""
    text = json.dumps([chart.figure for chart in found], allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _over_time(
    series: Sequence[AttemptSeries],
    field: str,
    *,
    title: str,
    note: str,
    begin: float,
    zone: tzinfo | None,
    marks: Sequence[dict[str, Any]] = (),
) -> Chart | None:
    data = []
    for each in series:
        points = [(point.t, getattr(point, field)) for point in each.points]
        if all(value is None for _, value in points):
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"attempt {each.attempt}",
                "x": [_time(begin + t, zone) for t, _ in points],
                "y": [value for _, value in points],
                "line": {"color": _colour(each.attempt), "width": 2},
            }
        )
    if not data:
        return None
    layout = _layout(legend=1 < len(data) <= 12)
    layout["xaxis"]["type"] = "date"
    layout["yaxis"]["rangemode"] = "tozero"
    if field == "gpu_util":
        layout["yaxis"]["range"] = [0, 102]
    layout["shapes"] = list(marks)
    return Chart(title=title, note=note, figure={"data": data, "layout": layout})


def _step_times(series: Sequence[AttemptSeries]) -> Chart | None:
    data = [
        {
            "type": "box",
            "name": str(each.attempt),
            "y": list(each.step_times_s),
            "boxpoints": "outliers",
            "marker": {"color": _colour(each.attempt), "size": 3},
        }
        for each in series
        if each.step_times_s
    ]
    if not data:
        return None
    layout = _layout(legend=False)
    layout["xaxis"] |= {"title": {"text": "attempt"}, "type": "category"}
    layout["yaxis"] |= {"title": {"text": "seconds"}, "type": "log"}
    return Chart(
        title="Step times",
        note="Seconds of a step in each attempt, on a logarithmic axis.",
        figure={"data": data, "layout": layout},
    )


def _marks(state: State, zone: tzinfo | None) -> list[dict[str, Any]]:
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": _time(stall.at, zone),
            "x1": _time(stall.at, zone),
            "y0": 0,
            "y1": 1,
            "line": {"color": "#c2485a", "width": 1, "dash": "dash"},
            "name": html.escape(clean(stall.id, 40)),
        }
        for stall in state.stalls[-MOST_MARKS:]
        if stall.why != "manual"
    ]


def _layout(*, legend: bool) -> dict[str, Any]:
    """Greys that can be read on white and on black, and no paper of its own."""
    axis = {"gridcolor": _LINE, "zerolinecolor": _LINE, "automargin": True}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": _GREY, "size": 12},
        "margin": {"l": 40, "r": 12, "t": 12, "b": 36},
        "height": 300,
        "autosize": True,
        "showlegend": legend,
        "legend": {"orientation": "h", "y": -0.2},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def _time(unix_s: float, zone: tzinfo | None) -> str:
    """Local time as plotly reads it, which knows no zones."""
    try:
        told = datetime.fromtimestamp(unix_s, zone).astimezone(zone)
    except (OverflowError, OSError, ValueError):
        told = datetime.fromtimestamp(0, zone).astimezone(zone)
    return told.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _colour(attempt: int) -> str:
    return _COLOURS[(attempt - 1) % len(_COLOURS)]
