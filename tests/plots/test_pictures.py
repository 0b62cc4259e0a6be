"""Pictures by matplotlib: the data of their axes, not how they look."""

import base64
import html
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np

from largek_dask import KMeans
from largek_dask.driver.job_view import JobView
from largek_dask.plots.panels import marks_of
from largek_dask.plots.panels import panels as job_panels
from largek_dask.plots.pictures import draw, image


def step(n, cost, elapsed, rows=100, **more):
    return {"event": "step", "step": n, "cost": cost, "elapsed": elapsed, "rows": rows, **more}


STARTED = {"event": "started", "n_rows": 100}
STEPS = [step(1, 100.0, 1.0, 50), step(2, 60.0, 1.5), step(3, 50.0, 4.0)]


def panels(*events):
    view = JobView({"id": "a"}).update_all([STARTED, *events])
    return draw(job_panels(view), "a title", marks_of(view))


def curve(axes):
    return axes.lines[0].get_xydata()


def by_title(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def test_draw__cost_against_time():
    axes = by_title(panels(*STEPS))
    np.testing.assert_allclose(curve(axes["Cost"]), [[1, 100], [1.5, 60], [4, 50]])
    assert axes["Cost"].get_xlabel() == "elapsed time (seconds)"


def test_draw__breaks_between_a_sample_and_all_rows():
    """The cost on a sample is lower: with one line it would seem to rise."""
    sample = [step(1, 40.0, 0.1, 10, sample=10), step(2, 30.0, 0.2, 10, sample=10)]
    later = [{**s, "step": s["step"] + 2} for s in STEPS]
    axes = by_title(panels(*sample, *later))["Cost"]
    assert [line.get_label() for line in axes.lines] == ["on a sample", "on all rows"]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[40, 30], [100, 60, 50]]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["on a sample", "on all rows"]
    assert by_title(panels(*STEPS))["Cost"].get_legend() is None


def path_model(k):
    x = np.random.default_rng(0).normal(size=(60, 2)) + 20 * (np.arange(60)[:, None] % 3)
    return KMeans(k, algorithm="partition-path", random_state=0).fit(x).model_


def test_a_fit_of_all_partitions_shows_inertia_over_its_lower_bound():
    model = path_model(6)
    plot = model.plot()
    assert plot.kinds[0] == "path"
    axes = by_title(plot.figure())["Inertia by number of clusters"]
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    np.testing.assert_allclose(lines["inertia"], np.stack([range(1, 7), model.path_.inertia], 1))
    bound = model.path_.lower_bound
    assert (axes.get_yscale(), (bound > 0).any(), (bound <= 0).any()) == ("log", True, True)
    drawn = np.where(bound > 0, bound, np.nan)
    np.testing.assert_allclose(lines["lower bound"][:, 1], drawn)
    found = model.path_.suggest_k()
    suggested = [values for name, values in lines.items() if name.startswith("suggested")]
    if found.k is None:
        assert suggested == []
    else:
        assert suggested[0].tolist() == [[found.k, model.path_.inertia[found.k - 1]]]
    assert axes.get_xlabel() == "clusters"


def test_no_pyplot():
    code = (
        "import sys; from largek_dask.plots.pictures import draw; "
        "from largek_dask.plots.panels import make_panel, make_trace; "
        "assert 'matplotlib' not in sys.modules; "
        "draw([make_panel('a', 'a', '', series=[make_trace('b', [1], [2])])]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_image_for_a_page_has_a_description():
    view = JobView({"id": "a"}).update_all([STARTED, *STEPS])
    (panel,) = [panel for panel in job_panels(view) if panel.kind == "cost"]
    first = str(image(replace(panel, words='a < b & "c"')))
    alt, data = re.fullmatch(
        r'<img class="chart" alt="(.*)" src="data:image/svg\+xml;base64,(.*)">', first
    ).groups()
    assert html.unescape(alt) == 'Cost: a < b & "c"'
    assert b"<svg" in base64.b64decode(data)
    assert first == image(replace(panel, words='a < b & "c"')), "equal panels give equal bytes"
