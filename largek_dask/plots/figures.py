"""Draw panels with Bokeh, with or without data.

Each series of a panel has a data source named ``KIND/SERIES``; the data source of events is named
``KIND/marks``. A web page requests :func:`item` once and fills the data sources by name, as
:func:`figure` does in Python. Figures contain no code and need only the core bundle of BokehJS, so
pages can forbid inline scripts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from bokeh.embed import json_item
from bokeh.models import (
    BasicTicker,
    BasicTickFormatter,
    ColumnDataSource,
    DataRange1d,
    DatetimeTickFormatter,
    HoverTool,
    Legend,
    LegendItem,
    Model,
    NoOverlap,
    NumeralTickFormatter,
    Range1d,
    SaveTool,
)
from bokeh.plotting import figure as new_figure

from largek_dask.plots.panels import Panel
from largek_dask.plots.theme import DASHES, MOST_NAMED, THEMES, X_LABELS, Theme

HEIGHT, LEGEND_ROW = 280, 28
"""Height of a figure and of one legend row, in pixels."""
N_TICKS = 5
"""Approximate number of ticks on a time axis."""
LABEL_GAP = 8
DAY = 86.4e6
"""Length of a day, in milliseconds."""
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "plus")
FORMATS = {"whole": "0,0", "share": "0.[0000]%"}
"""Bokeh number formats, by the value of ``Panel.numbers``."""
TEMPLATE = ("kind", "y", "x", "style", "numbers", "log", "log_x", "from_zero")
"""Fields of a panel that determine its figure without data."""


def key(panel: Panel, theme: str = "light") -> str:
    """Return a cache key; panels with the same key have the same :func:`item`."""
    ends = (at for trace in panel.series for at in trace.columns["x"][-1:] if at is not None)
    about = {name: getattr(panel, name) for name in TEMPLATE}
    about |= {
        "names": [trace.name for trace in panel.series],
        "columns": [sorted(trace.columns) for trace in panel.series],
        "theme": theme,
        "is_long": panel.x == "elapsed" and max(ends, default=0.0) > DAY,
    }
    return json.dumps(about)


def item(panel: Panel, theme: str = "light") -> dict[str, Any] | None:
    """Return an empty figure as JSON for ``Bokeh.embed.embed_item``, or None without series."""
    return _item(panel.kind, key(panel, theme)) if panel.series else None


@lru_cache(maxsize=256)
def _item(kind: str, about: str) -> dict[str, Any]:
    return to_json(_figure(about), kind)


def to_json(found: Model, kind: str) -> dict[str, Any]:
    """Return a figure as JSON with reproducible ids."""
    known: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return f'"{known.setdefault(match[1], f"{kind}-{len(known)}")}"'

    drawn = json.dumps(json_item(found), separators=(",", ":"))
    numbered: dict[str, Any] = json.loads(re.sub(r'"(p\d+)"', name, drawn))
    return numbered


def figure(
    panel: Panel, theme: str = "light", marks: Sequence[Mapping[str, Any]] = ()
) -> Model:  # fmt: skip
    """Return a figure with data, for ``bokeh.io.show``."""
    found = _figure(key(panel, theme))
    for trace in panel.series:
        source = found.select_one({"name": f"{panel.kind}/{trace.name}"})
        source.data = {name: _nan(values) for name, values in trace.columns.items()}
    source = found.select_one({"name": f"{panel.kind}/marks"})
    if source is not None:
        x = [mark["elapsed"] for mark in marks]
        spans = [None if mark["kind"] == "checkpoint" else at
                 for mark, at in zip(marks, x, strict=True)]  # fmt: skip
        texts = {name: [mark[name] for mark in marks] for name in ("kind", "text")}
        source.data = {"x": _nan(x), "span": _nan(spans), **texts}
    return found


def _nan(values: Iterable[Any]) -> list[Any]:
    return [math.nan if value is None else value for value in values]


def _figure(key: str) -> Any:
    about = json.loads(key)
    kind, style, theme = about["kind"], about["style"], THEMES[about["theme"]]
    names, axis, log = about["names"], about["x"], about["log"] and not about["log_x"]
    is_named = 1 < len(names) <= MOST_NAMED
    found = new_figure(
        name=kind,
        height=HEIGHT + LEGEND_ROW * (len(names) - 1) * is_named,
        sizing_mode="stretch_width",
        x_axis_type="log" if about["log_x"] else "datetime" if axis == "elapsed" else "linear",
        y_axis_type="log" if log else "linear",
        x_axis_label=X_LABELS.get(axis, axis),
        y_axis_label=about["y"],
        y_range=DataRange1d(start=0) if about["from_zero"] and not log else DataRange1d(),
        tools="pan,box_zoom,wheel_zoom,reset",
        # Activate no tool at first, so that the mouse wheel scrolls the page.
        active_drag=None,
        active_scroll=None,
        toolbar_location="above",
        output_backend="canvas",
    )
    found.add_tools(SaveTool(filename=f"largek-{kind}"))
    drawn = [_draw(found, f"{kind}/{name}", about["columns"][i], style, theme, i)
             for i, name in enumerate(names)]  # fmt: skip
    # Fix the axis ranges, because event marks must not widen them.
    for level in (found.x_range, found.y_range):
        level.renderers = [renderer for renderers in drawn for renderer in renderers]
    found.add_tools(_hover([renderers[-1] for renderers in drawn], axis, about["is_long"]))
    if axis == "elapsed":
        _draw_marks(found, kind, theme)
    if is_named:
        items = [LegendItem(label={"value": name}, renderers=renderers)
                 for name, renderers in zip(names, drawn, strict=True)]  # fmt: skip
        found.add_layout(
            Legend(items=items, click_policy="hide", background_fill_color=theme.paper,
                   label_text_color=theme.ink, label_text_font_size="12px",
                   border_line_color=None, padding=0, margin=4, spacing=8),
            "below",
        )  # fmt: skip
    _style(found, theme, about["numbers"], log)
    if axis == "elapsed":
        found.xaxis.formatter = _time_formatter(about["is_long"])
        found.xaxis.ticker.desired_num_ticks = N_TICKS
    elif about["log_x"]:
        found.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    return found


def _draw(
    found: Any, name: str, columns: Sequence[str], style: str, theme: Theme, i: int
) -> list[Any]:
    """Draw an empty trace and return its renderers."""
    source = ColumnDataSource({column: [] for column in columns}, name=name)
    color = theme.lines[i % len(theme.lines)]
    # Bokeh escapes a renderer's name in tooltips.
    how: dict[str, Any] = {"source": source, "name": name.partition("/")[2]}
    if style == "bars":
        return [found.quad("x", "right", "y", 0, fill_color=color, fill_alpha=0.45,
                           line_color=color, **how)]  # fmt: skip
    line = {"line_color": color, "line_width": 2.2 if i == 0 else 1.5,
            "line_dash": DASHES[(i // len(theme.lines) + i) % len(DASHES)]}  # fmt: skip
    drawn = found.line("x", "y", **line, **how)
    marks = found.scatter("x", "y", size=4, marker=MARKERS[i % len(MARKERS)],
                          fill_color=theme.paper if i % 2 else color, line_color=color,
                          **how)  # fmt: skip
    return [drawn, marks]


def _hover(renderers: Sequence[Any], axis: str, is_long: bool) -> HoverTool:
    """Return a tooltip that shows the name, position and value of a point."""
    is_time = axis == "elapsed"
    form = ("day %-j %T" if is_long else "%T") if is_time else "0,0.[00]"
    return HoverTool(
        renderers=list(renderers),
        tooltips=[("", "$name"), (X_LABELS.get(axis, axis), f"@x{{{form}}}"), ("", "@y{%.6g}")],
        formatters={"@y": "printf", **({"@x": "datetime"} if is_time else {})},
    )


def _draw_marks(found: Any, kind: str, theme: Theme) -> None:
    """Draw events as vertical lines, each with a tooltip at its lower end."""
    data: dict[str, list[Any]] = {"x": [], "span": [], "kind": [], "text": []}
    source = ColumnDataSource(data, name=f"{kind}/marks")
    found.vspan("span", source=source, line_color=theme.quiet, line_dash="dotted")
    found.extra_y_ranges = {"marks": Range1d(0, 1)}
    drawn = found.scatter(
        "x", 0.03, source=source, size=9, marker="triangle", fill_color=theme.ink,
        line_color=theme.paper, y_range_name="marks",
    )  # fmt: skip
    found.add_tools(HoverTool(renderers=[drawn], tooltips=[("@kind", "@text")]))


def _style(found: Any, theme: Theme, numbers: str, log: bool) -> None:
    found.background_fill_color = found.border_fill_color = theme.paper
    found.outline_line_color = None
    found.toolbar.logo = None
    found.min_border_right = 16
    for line in (*found.xaxis, *found.yaxis):
        line.axis_line_color = line.major_tick_line_color = theme.quiet
        line.minor_tick_line_color = None
        line.major_label_text_color = theme.quiet
        line.axis_label_text_color = theme.ink
        line.major_label_text_font_size = line.axis_label_text_font_size = "12px"
        line.axis_label_text_font_style = "normal"
        line.major_label_policy = NoOverlap(min_distance=LABEL_GAP)
    found.grid.grid_line_color = theme.rule
    found.xgrid.grid_line_color = None
    found.yaxis.formatter = (
        NumeralTickFormatter(format=FORMATS[numbers])
        if numbers
        else BasicTickFormatter(power_limit_high=6, power_limit_low=-4)
    )
    if numbers == "whole" and not log:
        # Ticks at fractions would be rounded to equal labels.
        found.yaxis.ticker = BasicTicker(min_interval=1)


def _time_formatter(is_long: bool) -> DatetimeTickFormatter:
    """Return a formatter of hours, minutes and seconds; for a long job, it also shows days."""
    formats = dict.fromkeys(("seconds", "minsec"), "%T")
    formats |= dict.fromkeys(("minutes", "hourmin", "hours"), "day %-j %R" if is_long else "%T")
    formats |= dict.fromkeys(("days", "months", "years"), "day %-j")
    # Times are durations, so ticks need not align with days. Older Bokeh has no such setting.
    scaling = {"boundary_scaling": False} if (
        "boundary_scaling" in DatetimeTickFormatter.properties()) else {}  # fmt: skip
    return DatetimeTickFormatter(microseconds="%T.%f", milliseconds="%T.%3N", **formats, **scaling)
