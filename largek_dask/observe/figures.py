"""Bokeh figures of panels: pure functions, without a server and without data.

A figure has a source for each line, called ``KIND/SERIES``, and one for what happened,
``KIND/marks``. A browser fills them by name: so :func:`item` depends on the kind of a panel, its
labels, the names of its series and the theme alone, and is made and sent once. What else it is
drawn with, such as another axis, is another item. Only models of the core bundle of BokehJS are
used, and none that holds code: pages may forbid inline code.

Columns of a line's source are those of the series (:mod:`observe.snapshot`), those of the marks
``x`` ``span`` ``kind`` ``text``; ``span`` is ``x`` where a line is drawn over the whole height, so
not for a checkpoint. What is null in a column has to be NaN in a source, or it is drawn at 0.
:func:`fill` does all this in Python.
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
    AdaptiveTicker,
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
    Quad,
    Range1d,
    SaveTool,
    Scatter,
    Step,
    VSpan,
)
from bokeh.models import Line as LineGlyph
from bokeh.plotting import figure as new_figure

from largek_dask.driver.events import Event
from largek_dask.driver.job_view import JobView
from largek_dask.observe.looks import DASHES, LOOKS, THEMES, TIMES, X_LABELS, Look, Theme
from largek_dask.observe.panels import Panel
from largek_dask.observe.snapshot import snapshot

__all__ = ["THEMES", "Theme", "figure", "fill", "item", "key"]

HEIGHT = 280
"""Pixels of a figure; it is as wide as there is room."""
MOST_NAMED = 10
"""Lines up to which a legend names them; the table names all, and each tells its name on hover."""
LEGEND_WIDTH = 240
"""Pixels that a legend may be wide: what a telephone of 390 pixels has beside the upright axis."""
NAME_WIDTH, LETTER_WIDTH, NAME_GAP = 25.0, 6.5, 8
"""Pixels of a name in a legend beside its letters, of each of these, and between two names."""
NAME_HEIGHT = 20
"""Pixels of a row of names in a legend."""
N_TICKS = 5
"""Numbers beside an axis, about: of a time as many as there is room for on a telephone."""
LABEL_GAP = 8
"""Pixels between two numbers beside an axis; what would be nearer is left out."""
DAY = 86.4e6
"""Milliseconds of a day; of a longer job a time of day alone would say too little."""
MARKS = "marks"
USUAL: tuple[Event, ...] = (
    {"event": "started", "n_rows": 1},
    {"event": "step", "step": 1, "elapsed": 1.0, "cost": 1.0, "time": "2026-01-01T00:00:00+00:00",
     "rows": 1, "n_changed": 1, "shift": 1.0, "eta_s": 1.0, "rows_per_second": 1.0, "bytes": 1,
     "state_bytes": 1, "cache_bytes": 1, "extra": {"distances": 1.0},
     "seconds": {"total": 1.0, "compute": 1.0, "read": 0.0, "wait": 0.0, "reduce": 0.0,
                 "driver": 0.0}},
    {"event": "sizes", "edges": [1, 2], "counts": [1]},
)  # fmt: skip
"""What nearly every job tells, if not of these values."""


MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "plus")
"""Shapes of marks."""
NUMBERS = {"": "", "whole": "0,0", "share": "0.[0000]%", "bytes": "0.0b", "seconds": "00:00:00"}
"""Formats by kind of number."""
BASES = {
    "seconds": (60, (1, 2, 5, 10, 15, 20, 30)),
    "bytes": (1024, tuple(2**i for i in range(10))),
}
"""What numbers of a kind are round in, and which."""


def key(
    panel: Panel, theme: str = "light", x: str | None = None, log: bool | None = None
) -> tuple[Any, ...]:
    """What :func:`item` depends on: equal keys, equal items."""
    axis = x if x in panel["axes"] else panel["x"]
    columns = (
        tuple(name for name in panel["series"][0] if name != "name") if panel["series"] else ()
    )
    return (
        panel["kind"],
        panel["y"],
        tuple(series["name"] for series in panel["series"]),
        columns,
        axis,
        bool(panel["log"] if log is None else log) and not LOOKS.get(panel["kind"], Look()).bars,
        theme if theme in THEMES else "light",
        axis != panel["x"],
        axis == "elapsed" and _latest(panel) > DAY,
    )


def _latest(panel: Panel) -> float:
    """Where the lines of a panel end."""
    ends = (next((x for x in reversed(line["x"]) if x is not None), 0.0)
            for line in panel["series"])  # fmt: skip
    return float(max(ends, default=0.0))


def item(
    panel: Panel, theme: str = "light", *, x: str | None = None, log: bool | None = None
) -> dict[str, Any] | None:
    """The figure of a panel as JSON for ``Bokeh.embed.embed_item``; None where it has no series.

    Parameters
    ----------
    panel : dict
        Of a snapshot.
    theme : {"light", "dark"}
    x : str, optional
        One of the panel's ``axes``; its own by default.
    log : bool, optional
        Whether the upright axis is logarithmic; that of the cost is then of how far it is from its
        best value. As the panel says by default.
    """
    if not panel["series"]:
        return None
    found: dict[str, Any] = json.loads(_item(key(panel, theme, x, log)))
    return found


def prepare() -> None:
    """Make the charts that nearly every job has, which takes longer than to send and draw them."""
    for panel in snapshot(JobView().update_all(USUAL))["panels"]:
        if panel["series"]:
            item(panel)


@lru_cache(maxsize=256)
def _item(about: tuple[Any, ...]) -> str:
    return _numbered(json.dumps(json_item(_figure(about)), separators=(",", ":")), about[0])


def filled_item(
    panel: Panel,
    theme: str = "light",
    *,
    x: str | None = None,
    log: bool | None = None,
    marks: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Like :func:`item`, with the data of the panel: for a file, where nobody fills it."""
    drawn = json_item(figure(panel, theme, x=x, log=log, marks=marks))
    found: dict[str, Any] = json.loads(_numbered(json.dumps(drawn), panel["kind"]))
    return found


def _numbered(text: str, kind: str) -> str:
    """An item whose ids depend on nothing but itself: Bokeh counts all models of a process."""
    known: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return f'"{known.setdefault(match[1], f"{kind}-{len(known)}")}"'

    return re.sub(r'"(p\d+)"', name, text)


def figure(
    panel: Panel,
    theme: str = "light",
    *,
    x: str | None = None,
    log: bool | None = None,
    marks: Sequence[Mapping[str, Any]] = (),
) -> Model:
    """The figure of a panel with its data, as ``bokeh.io.show`` takes it; see :func:`item`.

    Parameters
    ----------
    panel, theme, x, log
        As there.
    marks : sequence of dict
        Of the snapshot.
    """
    about = key(panel, theme, x, log)
    found = _figure(about)
    fill(found, panel, marks, about[4])
    return found


def fill(
    found: Model, panel: Panel, marks: Sequence[Mapping[str, Any]] = (), axis: str = "elapsed"
) -> None:
    """Put the data of a panel into its figure, by the names of the sources."""
    for series in panel["series"]:
        source = found.select_one({"name": f"{panel['kind']}/{series['name']}"})
        source.data = {name: _nan(values) for name, values in series.items() if name != "name"}
    source = found.select_one({"name": f"{panel['kind']}/{MARKS}"})
    if source is not None:
        x = [mark.get(axis) for mark in marks]
        source.data = {
            "x": _nan(x),
            "span": _nan(None if mark["kind"] == "checkpoint" else at
                         for mark, at in zip(marks, x, strict=True)),
            "kind": [mark["kind"] for mark in marks],
            "text": [mark["text"] for mark in marks],
        }  # fmt: skip


def _nan(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _figure(about: tuple[Any, ...]) -> Any:
    """A figure without data."""
    kind, label, names, columns, axis, log, theme_name, is_other, is_long = about
    look, theme = LOOKS.get(kind, Look()), THEMES[theme_name]
    found = new_figure(
        name=kind,
        height=HEIGHT + (NAME_HEIGHT + NAME_GAP) * max(0, _legend_rows(names) - 1),
        sizing_mode="stretch_width",
        x_axis_type="log" if look.bars else "datetime" if axis in TIMES else "linear",
        y_axis_type="log" if log else "linear",
        x_axis_label=X_LABELS.get(axis, axis),
        y_axis_label=f"{label} above the best" if log and "above" in columns else label,
        y_range=DataRange1d(start=0) if look.from_zero and not log else DataRange1d(),
        tools="pan,box_zoom,wheel_zoom,reset",
        # A page is scrolled by what else would move a figure: tools are chosen first.
        active_drag=None,
        active_scroll=None,
        toolbar_location="above",
        output_backend="canvas",
    )
    found.add_tools(SaveTool(filename=f"largek-{kind}"))
    x, y = (axis if is_other else "x"), ("above" if log and "above" in columns else "y")
    drawn = [
        _draw(found, f"{kind}/{name}", (*columns,), (x, y), look, theme, i)
        for i, name in enumerate(names)
    ]
    # What happened does not widen the axes.
    for level in (found.x_range, found.y_range):
        level.renderers = [renderers[0] for renderers in drawn]
    found.add_tools(_hover([renderers[-1] for renderers in drawn], x, y, axis, is_long))
    if axis in ("elapsed", "time", "passes"):
        _draw_marks(found, kind, theme)
    _legend(found, names, drawn, theme)
    _style(found, theme, axis, look, log)
    if axis in TIMES:
        found.xaxis.formatter = _time_formatter(axis, is_long)
        found.xaxis.ticker.desired_num_ticks = N_TICKS
    return found


def _draw(
    found: Any,
    name: str,
    columns: Sequence[str],
    place: tuple[str, str],
    look: Look,
    theme: Theme,
    i: int,
) -> list[Any]:
    """A line and its marks, or bars; its renderers."""
    source = ColumnDataSource({column: [] for column in columns}, name=name)
    color = theme.lines[i % len(theme.lines)]
    # Names lie in a source's name alone: a tooltip takes them from there, escaped.
    told = name.partition("/")[2]
    if look.bars:
        bars = Quad(left="x", right="right", bottom=0, top="y", fill_color=color,
                    fill_alpha=0.45, line_color=color)  # fmt: skip
        return [found.add_glyph(source, bars, name=told)]
    dash = DASHES[(i // len(theme.lines) + i) % len(DASHES)]
    drawn: Any = Step if look.steps else LineGlyph
    where = {"mode": "after"} if look.steps else {}
    line = drawn(x=place[0], y=place[1], line_color=color, line_dash=dash,
                 line_width=2.2 if i == 0 else 1.5, **where)  # fmt: skip
    marks = Scatter(x=place[0], y=place[1], size="mark", marker=MARKERS[i % len(MARKERS)],
                    fill_color=theme.paper if i % 2 else color, line_color=color)  # fmt: skip
    return [
        found.add_glyph(source, line, name=told),
        found.add_glyph(source, marks, name=told),
    ]


def _hover(renderers: Sequence[Any], x: str, y: str, axis: str, is_long: bool) -> HoverTool:
    """What a point tells: whose it is, where, how much."""
    used = "day %-j %T" if is_long else "%T"
    form = {"time": "%F %T", "elapsed": used}.get(axis, "0,0.[00]")
    formatters = {f"@{x}": "datetime"} if axis in TIMES else {}
    formatters[f"@{y}"] = "printf"
    return HoverTool(
        renderers=list(renderers),
        tooltips=[
            ("", "$name"),
            (X_LABELS.get(axis, axis), f"@{x}{{{form}}}"),
            ("", f"@{y}{{%.6g}}"),
        ],
        formatters=formatters,
    )


def _draw_marks(found: Any, kind: str, theme: Theme) -> None:
    """What happened: a line over the height, and below it what tells of it."""
    source = ColumnDataSource({"x": [], "span": [], "kind": [], "text": []}, name=f"{kind}/{MARKS}")
    found.add_glyph(source, VSpan(x="span", line_color=theme.quiet, line_dash="dotted"))
    found.extra_y_ranges = {MARKS: Range1d(0, 1)}
    feet = Scatter(x="x", y={"value": 0.03}, size=9, marker="triangle", fill_color=theme.ink,
                   line_color=theme.paper)  # fmt: skip
    drawn = found.add_glyph(source, feet, y_range_name=MARKS)
    found.add_tools(HoverTool(renderers=[drawn], tooltips=[("@kind", "@text")]))


def _legend(found: Any, names: Sequence[str], drawn: Sequence[list[Any]], theme: Theme) -> None:
    """Names below the figure; a tap on one hides its line."""
    if not 1 < len(names) <= MOST_NAMED:
        return
    items = [
        LegendItem(label={"value": name}, renderers=renderers)
        for name, renderers in zip(names, drawn, strict=True)
    ]
    legend = Legend(
        items=items,
        # Row by row, as it is read.
        orientation="horizontal",
        ncols=_legend_columns(names),
        click_policy="hide",
        background_fill_color=theme.paper,
        label_text_color=theme.ink,
        label_text_font_size="12px",
        border_line_color=None,
        padding=0,
        margin=4,
        spacing=NAME_GAP,
    )
    found.add_layout(legend, "below")


def _legend_columns(names: Sequence[str]) -> int:
    """In how many columns names stand, row by row: as many as have room on a telephone."""
    widths = [NAME_WIDTH + LETTER_WIDTH * len(name) for name in names]
    for n in range(len(names), 1, -1):
        columns = [max(widths[i::n]) for i in range(n)]
        if sum(columns) + NAME_GAP * (n - 1) <= LEGEND_WIDTH:
            return n
    return 1


def _legend_rows(names: Sequence[str]) -> int:
    """How many rows of names there are below a figure."""
    return -(-len(names) // _legend_columns(names)) if 1 < len(names) <= MOST_NAMED else 0


def _style(found: Any, theme: Theme, axis: str, look: Look, log: bool) -> None:
    found.background_fill_color = found.border_fill_color = theme.paper
    found.outline_line_color = None
    found.toolbar.logo = None
    found.min_border_right = 16
    for line in (*found.xaxis, *found.yaxis):
        line.axis_line_color = line.major_tick_line_color = theme.quiet
        line.minor_tick_line_color = None
        line.major_label_text_color = theme.quiet
        line.major_label_text_font_size = "12px"
        line.axis_label_text_color = theme.ink
        line.axis_label_text_font_size = "12px"
        line.axis_label_text_font_style = "normal"
    found.grid.grid_line_color = theme.rule
    found.xgrid.grid_line_color = None
    for line in (*found.xaxis, *found.yaxis):
        line.major_label_policy = NoOverlap(min_distance=LABEL_GAP)
    if axis == "passes" or look.bars:
        found.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    found.yaxis.formatter = (
        NumeralTickFormatter(format=NUMBERS[look.numbers])
        if look.numbers
        else BasicTickFormatter(power_limit_high=6, power_limit_low=-4)
    )
    if look.numbers in BASES and not log:
        base, mantissas = BASES[look.numbers]
        found.yaxis.ticker = AdaptiveTicker(base=base, mantissas=list(mantissas))
    elif look.numbers == "whole" and not log:
        # Of few there would be several numbers between two whole ones, all written as these.
        found.yaxis.ticker = BasicTicker(min_interval=1)


def _time_formatter(axis: str, is_long: bool) -> DatetimeTickFormatter:
    """Times as they stand below every chart: hours, minutes and seconds; of a long job its day."""
    if axis == "time":
        return DatetimeTickFormatter(
            microseconds="%T.%f", milliseconds="%T.%3N", seconds="%T", minsec="%T", minutes="%R",
            hourmin="%R", hours="%R", days="%-d %b", months="%b %Y", years="%Y",
        )  # fmt: skip
    hours = "day %-j %R" if is_long else "%T"
    return DatetimeTickFormatter(
        microseconds="%T.%f", milliseconds="%T.%3N", seconds="%T", minsec="%T", minutes=hours,
        hourmin=hours, hours=hours, days="day %-j", months="day %-j", years="day %-j",
        # A time of 0 is no day; earlier versions of Bokeh cannot be told so.
        **({"boundary_scaling": False}
           if "boundary_scaling" in DatetimeTickFormatter.properties() else {}),
    )  # fmt: skip
