"""Figures: what is drawn, not how it looks."""

import builtins
import subprocess
import sys

import numpy as np
import pytest

from largek_dask.driver.job_view import JobView
from largek_dask.driver.sizes import sizes_of
from largek_dask.errors import DataError, MissingDependencyError
from largek_dask.observe.looks import round_ticks
from largek_dask.observe.plots import (
    codebook_figure,
    elbow_figure,
    panels_figure,
    path_figure,
)
from largek_dask.observe.snapshot import snapshot


def step(n, cost, elapsed, rows=100, **more):
    return {"event": "step", "step": n, "cost": cost, "elapsed": elapsed, "rows": rows, **more}


STARTED = {"event": "started", "n_rows": 100}
STEPS = [step(1, 100.0, 1.0, 50), step(2, 60.0, 1.5), step(3, 50.0, 4.0)]


def panels(*events):
    return panels_figure(snapshot(JobView({"id": "a"}).update_all([STARTED, *events])), "a title")


def curve(axes):
    return axes.lines[0].get_xydata()


def by_title(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def test_panels_figure__cost_against_time_and_passes():
    axes = by_title(panels(*STEPS))
    np.testing.assert_allclose(curve(axes["Cost against time"]), [[1, 100], [1.5, 60], [4, 50]])
    np.testing.assert_allclose(
        curve(axes["Cost against passes"]), [[0.5, 100], [1.5, 60], [2.5, 50]]
    )
    assert axes["Cost against time"].get_xlabel() == "time used (seconds)"
    assert "passes" in axes["Cost against passes"].get_xlabel()


def test_panels_figure__long_fits_are_drawn_in_hours():
    axes = by_title(panels(step(1, 9.0, 3600.0), step(2, 8.0, 36_000.0)))["Cost against time"]
    assert axes.get_xlabel() == "time used (hours)"
    np.testing.assert_allclose(curve(axes)[:, 0], [1, 10])


def test_panels_figure__leaves_out_steps_without_a_cost():
    passes = by_title(panels(step(1, None, 0.5), *[{**s, "step": s["step"] + 1} for s in STEPS]))
    np.testing.assert_allclose(
        curve(passes["Cost against passes"]), [[1.5, 100], [2.5, 60], [3.5, 50]]
    )


def test_panels_figure__breaks_between_a_sample_and_all_rows():
    """The cost on a sample is lower: with one line it would seem to rise."""
    sample = [step(1, 40.0, 0.1, 10, sample=10), step(2, 30.0, 0.2, 10, sample=10)]
    later = [{**s, "step": s["step"] + 2} for s in STEPS]
    axes = by_title(panels(*sample, *later))["Cost against time"]
    assert [line.get_label() for line in axes.lines] == ["on a sample", "on all rows"]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[40, 30], [100, 60, 50]]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["on a sample", "on all rows"]
    assert by_title(panels(*STEPS))["Cost against time"].get_legend() is None


def test_panels_figure__marks_what_happened_but_no_checkpoints():
    events = [STEPS[0], {"event": "checkpoint", "n_iter": 1},
              {"event": "warning", "message": "slow"}, *STEPS[1:]]  # fmt: skip
    axes = by_title(panels(*events))["Cost against time"]
    assert [line.get_xdata()[0] for line in axes.lines[1:]] == [1.0]


def test_panels_figure__sizes_are_bars(tmp_path):
    sizes = {"event": "sizes", **sizes_of(np.array([3.0, 0.0, 9.0, 0.0, 300.0]))}
    figure = panels(*STEPS, sizes)
    axes = by_title(figure)["Sizes of clusters"]
    assert axes.get_xscale() == "log"
    (bars,) = axes.patches
    assert sum(bars.get_data().values) == 3
    for name in ("fit.png", "fit.svg", "fit.pdf"):
        figure.savefig(tmp_path / name)
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_panels_figure__lines_are_told_apart_without_colours():
    events = [step(n, 9.0 / n, float(n), seconds={"total": 1, "compute": 0.5, "read": 0.1,
                                                   "wait": 0.2, "reduce": 0.1})
              for n in range(1, 5)]  # fmt: skip
    lines = by_title(panels(*events))["Where the time goes"].lines
    assert [line.get_label() for line in lines] == ["compute", "read", "wait", "reduce", "rest"]
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 5


def test_panels_figure__of_nothing_says_so():
    with pytest.raises(DataError, match="no step yet"):
        panels()


def test_round_ticks():
    assert round_ticks("bytes", 4 * 2**30) == pytest.approx([i * 2**30 for i in range(5)])
    assert round_ticks("seconds", 3600 * 5.5) == pytest.approx([i * 3600 for i in range(6)])
    assert round_ticks("seconds", 0) == [0]


def drawn(inertia, lower_bound, suggested=None, clear=True):
    """The axes of the elbow, and its lines by their names."""
    curves = (np.array(values, float) for values in (inertia, lower_bound))
    figure = path_figure(*curves, np.ones(3), "a title", suggested=suggested, clear=clear)
    assert len(figure.axes) == 3
    elbow = figure.axes[0]
    return elbow, {line.get_label(): line.get_xydata() for line in elbow.lines}


def test_path_figure__inertia_over_its_bound():
    elbow, lines = drawn([9, 5, 3], [9, 2, 0])
    np.testing.assert_array_equal(lines["found"], [[1, 9], [2, 5], [3, 3]])
    np.testing.assert_array_equal(lines["lower bound"], [[1, 9], [2, 2], [3, 0]])
    assert set(lines) == {"found", "lower bound", "no clear number of clusters"}
    assert elbow.get_yscale() == "linear"
    assert elbow.get_ylim()[0] == 0
    np.testing.assert_array_equal(elbow.get_xticks(), [1, 2, 3])


def test_path_figure__spans_decades():
    elbow, lines = drawn([900, 50, 3, 0], [900, 20, 0, 0])
    assert elbow.get_yscale() == "log"
    bottom = elbow.get_ylim()[0]
    assert 0 < bottom < 3
    # What is 0 lies below what is shown.
    assert 0 < lines["found"][-1, 1] < bottom
    assert (lines["lower bound"][2:, 1] < bottom).all()
    assert drawn([300, 3], [0, 0])[0].get_yscale() == "linear"
    assert drawn([301, 3], [0, 0])[0].get_yscale() == "log"


def test_path_figure__marks_what_is_suggested():
    _, lines = drawn([9, 5, 3], [9, 2, 0], suggested=2)
    np.testing.assert_array_equal(lines["suggested: 2 clusters"], [[2, 5]])
    _, lines = drawn([9, 5, 3], [9, 2, 0], suggested=3, clear=False)
    np.testing.assert_array_equal(lines["suggested: 3 clusters or more"], [[3, 3]])


@pytest.mark.parametrize("inertia", [[4.0], [0.0], [0.0, 0.0]])
def test_path_figure__of_hardly_anything(inertia, tmp_path):
    elbow, _ = drawn(inertia, inertia, suggested=1)
    assert elbow.get_ylim()[1] > max(inertia)
    elbow.figure.savefig(tmp_path / "path.png")


def test_path_figure__of_very_many(tmp_path):
    many = 1e4 / np.arange(1, 301)
    elbow, lines = drawn(many, many / 2, suggested=300)
    assert len(lines["found"]) == 300
    assert len(elbow.get_xticks()) < 20
    # Nothing that is written lies over the curve.
    elbow.figure.savefig(tmp_path / "path.png")
    box = elbow.get_legend().get_window_extent()
    pixels = elbow.transData.transform(lines["found"])
    assert not any(box.contains(*pixel) for pixel in pixels)


def test_codebook_figure__names_photographs_and_psnr():
    image = np.zeros((16, 24, 3), np.uint8)
    figure = codebook_figure(image, [("one", image, image, 21.34), ("two", image, image, 9.0)], "t")
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 5
    assert titles[1:3] == ["one: the photograph", "rebuilt, PSNR 21.3 dB"]


def test_no_pyplot():
    code = (
        "import sys, numpy as np; from largek_dask.observe.plots import path_figure; "
        "assert 'matplotlib' not in sys.modules; x = np.ones(3); "
        "path_figure(x, x, x, '', suggested=None, clear=True); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"largek_dask\[plots\]"):
        panels(*STEPS)


def test_elbow_figure__marks_what_is_suggested_and_how_sure_it_is():
    sizes = np.array([1, 2, 4, 8, 16, 32])
    inertia, errors = 100.0 / sizes, np.full(6, 2.0)
    stability = np.array([1, 0.5, 0.6, 0.95, np.nan, 0.3])
    figure = elbow_figure(
        sizes,
        inertia,
        errors,
        stability,
        "Title",
        stable=0.9,
        suggested=8,
        between=(7, 9),
        clear=True,
        words="8 clusters.",
    )
    upper, lower = figure.axes
    np.testing.assert_allclose(curve(upper), np.stack([sizes, inertia], axis=1))
    assert len(curve(lower)) == 5
    assert legend_of(upper) == ["suggested: 8 (7 to 9) clusters"]
    assert upper.get_xscale() == "log"
    assert figure.get_supxlabel() == "8 clusters."


def test_elbow_figure__of_no_clear_number_marks_none():
    figure = elbow_figure(
        np.arange(1, 4),
        np.array([3.0, 1.0, 0.0]),
        np.zeros(3),
        np.full(3, np.nan),
        "Title",
        stable=0.9,
        suggested=None,
        between=None,
        clear=False,
        words="No clear k.",
    )
    upper, _ = figure.axes
    assert legend_of(upper) == ["no clear number of clusters"]
    assert len(upper.lines) == 2
    assert upper.get_xticks().tolist() == [1, 2, 3]


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]
