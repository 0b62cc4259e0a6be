"""Figures: what is drawn, not how it looks."""

import builtins
import subprocess
import sys

import numpy as np
import pytest

from largek_dask.errors import DataError, MissingDependencyError
from largek_dask.observe.plots import (
    codebook_figure,
    cost_figure,
    elbow_figure,
    fit_figure,
    path_figure,
    sizes_figure,
)

HISTORY = [
    {"cost": 100.0, "seconds": 1.0, "rows": 50},
    {"cost": 60.0, "seconds": 1.5, "rows": 100},
    {"cost": 50.0, "seconds": 4.0, "rows": 100},
]


def curve(axes):
    return axes.lines[0].get_xydata()


def test_cost_figure__against_time_and_passes():
    left, right = cost_figure(HISTORY, n_rows=100).axes
    np.testing.assert_allclose(curve(left), [[1, 100], [1.5, 60], [4, 50]])
    np.testing.assert_allclose(curve(right), [[0.5, 100], [1.5, 60], [2.5, 50]])
    assert left.get_xlabel() == "seconds"
    assert "passes" in right.get_xlabel()


def test_cost_figure__leaves_out_steps_without_a_cost():
    history = [{"cost": None, "seconds": 0.5, "rows": 100}, *HISTORY]
    _, right = cost_figure(history, n_rows=100).axes
    np.testing.assert_allclose(curve(right), [[1.5, 100], [2.5, 60], [3.5, 50]])


def test_cost_figure__counts_the_rows_of_steps_that_were_thinned_out():
    steps = [{**step, "step": n} for n, step in zip((1, 2, 6), HISTORY, strict=True)]
    _, right = cost_figure(steps, n_rows=100).axes
    np.testing.assert_allclose(curve(right), [[0.5, 100], [1.5, 60], [5.5, 50]])


def test_cost_figure__breaks_between_a_sample_and_all_rows():
    """The cost on a sample is lower: with one line it would seem to rise."""
    sample = [
        {"cost": 40.0, "seconds": 0.1, "rows": 10, "extra": {"everywhere": 0.0}},
        {"cost": 30.0, "seconds": 0.2, "rows": 10, "extra": {"everywhere": 0.0}},
    ]
    for axes in cost_figure([*sample, *HISTORY], n_rows=100).axes:
        assert [line.get_label() for line in axes.lines] == ["on a sample", "on all rows"]
        assert [line.get_ydata().tolist() for line in axes.lines] == [[40, 30], [100, 60, 50]]
        texts = [text.get_text() for text in axes.get_legend().get_texts()]
        assert texts == ["on a sample", "on all rows"]
    assert cost_figure(HISTORY, n_rows=100).axes[0].get_legend() is None


def test_cost_figure__of_nothing_says_so():
    with pytest.raises(DataError, match="no step yet"):
        cost_figure([], n_rows=10)


def test_sizes_figure__sorted_with_empty_clusters_counted():
    left, right = sizes_figure(np.array([3.0, 0.0, 9.0, 0.0])).axes
    np.testing.assert_allclose(curve(left)[:, 1], [9, 3, 0, 0])
    assert sum(bar.get_height() for bar in right.patches) == 4
    assert "2 empty" in right.get_title(loc="left")


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


def test_fit_figure__has_all_four(tmp_path):
    figure = fit_figure(HISTORY, np.arange(5.0), 100, "a title")
    assert len(figure.axes) == 4
    figure.savefig(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_codebook_figure__names_photographs_and_psnr():
    image = np.zeros((16, 24, 3), np.uint8)
    figure = codebook_figure(image, [("one", image, image, 21.34), ("two", image, image, 9.0)], "t")
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 5
    assert titles[1:3] == ["one: the photograph", "rebuilt, PSNR 21.3 dB"]


def test_no_pyplot():
    code = (
        "import sys, numpy as np; from largek_dask.observe.plots import sizes_figure; "
        "assert 'matplotlib' not in sys.modules; sizes_figure(np.ones(3)); "
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
        sizes_figure(np.ones(3))


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
