"""Bokeh figures of panels: no data in them, nothing but the core of BokehJS, nothing by chance."""

import json
import sys

import numpy as np
import pytest
from bokeh.document import Document

from largek_dask import KMeans
from largek_dask.driver.job_view import JobView
from largek_dask.errors import DataError, ParameterError
from largek_dask.plots.figures import figure, item, key, to_json
from largek_dask.plots.panels import make_panel, marks_of, panels
from largek_dask.plots.pictures import draw
from largek_dask.plots.plot_collection import Plot, plot_of
from tests.plots.test_panels import started, step, view_of


def job_view(n=6):
    """Of a job that has every panel."""
    extra = {"distances": 0.5, "gain": 0.1}
    sizes = {"event": "sizes", "edges": list(range(1, 34)), "counts": [3.0] * 32}
    steps = [step(i, extra=extra) for i in range(1, n)]
    warning = {"event": "warning", "time": "2026-11-25T06:00:03+00:00", "message": "slow"}
    checkpoint = {"event": "checkpoint", "time": "2026-11-25T06:00:03+00:00", "n_iter": 3}
    found = view_of(started(), *steps,
                     sizes, warning, checkpoint)  # fmt: skip
    found.set_status({"id": "7f3a", "state": "running", "eta_s": 9.0, "elapsed": 1.0, "bytes": 5})
    return found


VIEW = job_view()
PANELS, MARKS = panels(VIEW), marks_of(VIEW)
DRAWN = {panel.kind: panel for panel in PANELS if panel.series}


def document_of(found):
    """Bokeh's own reading of an item: each of its models has to be valid."""
    return Document.from_json(found["doc"])


def test_every_panel_with_lines_is_drawn():
    assert len(DRAWN) == 5
    assert item(make_panel("empty", "Nothing")) is None


@pytest.mark.slow
def test_items_depend_on_kind_names_and_theme_alone():
    """Whatever the data, and however many figures have been made before."""
    other = {panel.kind: panel for panel in panels(job_view(40))}
    for kind, panel in DRAWN.items():
        # (Bokeh lists data models, of which another test may have made the first)
        item.__globals__["_item"].cache_clear()
        before = json.dumps(item(panel))
        figure(panel)
        item.__globals__["_item"].cache_clear()
        assert json.dumps(item(other[kind])) == before
        assert key(other[kind]) == key(panel)
        assert key(panel, "dark") != key(panel)
        assert json.dumps(item(panel, "dark")) != before


@pytest.mark.slow
def test_items_use_no_code_and_only_the_core_of_bokeh_js():
    """Widgets, tables, WebGL and mathjax are scripts of their own, and pages may forbid code."""
    names = set()
    for panel in DRAWN.values():
        text = json.dumps(item(panel))
        assert "CustomJS" not in text
        names |= {model.__class__.__module__ for model in document_of(json.loads(text)).models}
        assert '"output_backend": "webgl"' not in text
    assert names
    assert not any("widgets" in name for name in names)


@pytest.mark.parametrize("kind", DRAWN)
def test_filled_figures_show_the_panel(kind):
    panel = DRAWN[kind]
    found = document_of(to_json(figure(panel, marks=MARKS), kind))
    for trace in panel.series:
        source = found.select_one({"name": f"{kind}/{trace.name}"})
        expected = [np.nan if value is None else value for value in trace.columns["y"]]
        np.testing.assert_array_equal(source.data["y"], expected)
    marks = found.select_one({"name": f"{kind}/marks"})
    if marks is not None:
        assert list(marks.data["text"]) == ["slow", "checkpoint after step 3"]
        # Only what is worth a line has one.
        assert np.isnan(marks.data["span"]).tolist() == [False, True]


def test_what_happened_widens_no_axis():
    drawn = figure(DRAWN["cost"], marks=MARKS)
    marks = drawn.select_one({"name": "cost/marks"})
    assert marks is not None
    for level in (drawn.x_range, drawn.y_range):
        assert level.renderers
        assert all(renderer.data_source is not marks for renderer in level.renderers)


# --- plots of jobs and models ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def plot():
    x = np.random.default_rng(0).normal(size=(500, 3))
    return KMeans(5, algorithm="lloyd", random_state=0).fit(x).model_.plot()


def test_a_model_is_drawn_by_its_history_and_sizes(plot):
    assert plot.kinds == ["cost", "gain", "sizes"]
    assert "5 clusters of 500 rows × 3" in repr(plot)
    assert type(plot.bokeh(theme="dark")).__name__ == "figure"
    with pytest.raises(ParameterError, match="cost, gain, sizes"):
        plot.bokeh("speed")
    (panel,) = [panel for panel in plot.panels if panel.kind == "sizes"]
    assert sum(panel.series[0].columns["y"]) == 5


def test_a_notebook_shows_it_without_scripts(plot):
    html = plot._repr_html_()
    assert html.count('<img class="chart"') == 3
    assert "<script" not in html
    assert "Convergence" in html
    assert len(html) < 400_000


def test_what_happened_is_marked_but_checkpoints():
    (cost,) = [panel for panel in PANELS if panel.kind == "cost"]
    axes = draw([cost], marks=MARKS).axes[0]
    assert [line.get_linestyle() for line in axes.lines].count(":") == 1


@pytest.fixture
def without_matplotlib(monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_there_are_tables(plot):
    html = plot._repr_html_()
    assert "<img" not in html
    assert "largek_dask[plots]" in html
    assert "<td" in html


def test_of_nothing_it_says_so():
    nothing = plot_of("7f3a", {}, [])
    assert nothing.kinds == []
    assert "nothing yet" in repr(nothing)
    with pytest.raises(DataError, match="no step yet"):
        nothing.figure()
    assert isinstance(nothing._repr_html_(), str)


def test_names_cannot_break_the_page():
    bad = "</script><script>alert(1)</script>"
    about = JobView().update_all(
        [started(), step(1), step(2),
         {"event": "warning", "message": bad}]
    )  # fmt: skip
    about.set_status({"id": bad, "name": bad, "state": "running", "title": bad})
    plot = Plot(panels(about), bad, marks_of(about))
    assert "<script" not in plot._repr_html_()
