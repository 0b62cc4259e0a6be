"""A fit as a card in a notebook: what it shows while it runs, and however it ends."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.driver.formatting import human_count
from largek_dask.errors import BadRowsError, DegenerateDataWarning
from largek_dask.plots import cards
from tests.helpers import needs

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.normal(c, 1, size=(400, 4)) for c in (0, 20, 40)])


@pytest.fixture
def always(monkeypatch):
    """A card that is shown anew at every event."""
    monkeypatch.setattr(cards, "EVERY_SECONDS", 0.0)


def cells(html):
    """What a card tells, by name."""
    found = re.findall(r"<tr[^>]*><t[dh][^>]*>(.*?)</t[dh]><td[^>]*>(.*?)</td></tr>", html)
    return {name: re.sub(r"<[^>]*>", "", text) for name, text in found}


def test_a_fit_is_a_card_that_is_updated_in_place(page, always, capsys):
    km = lk.KMeans(3, algorithm="lloyd", init="random", tol=0, random_state=2, verbose=1).fit(X)
    [[first, *between, last]] = page.values()
    assert len(between) > km.n_iter_ > 1
    assert "<b>KMeans</b>" in first
    assert "running" in first
    assert cells(first) == {"data": "the data", "model": "3 clusters by lloyd"}
    steps = [cells(shown).get("step") for shown in between]
    assert f"{km.n_iter_ - 1} of at most 300" in steps
    told = cells(last)
    assert "finished" in last
    assert told["data"] == "the data (1,200 × 4 in 1 chunk)"
    assert told["ended"].startswith(f"converged after {km.n_iter_} steps")
    assert told["inertia"] == f"{km.inertia_:.8g}"
    assert told["digest"] == km.model_.digest()
    assert told["speed"].endswith(f"; {human_count(km.n_iter_ * len(X))} rows seen")
    assert "again" not in told
    assert "output" not in told
    # One way to show progress at a time.
    assert capsys.readouterr().err == ""


def test_without_verbose_there_is_no_card(page):
    lk.KMeans(3, random_state=0).fit(X)
    assert page == {}


def test_outside_of_a_notebook_it_is_a_line(capsys):
    lk.KMeans(3, random_state=0, verbose=1).fit(X)
    assert "stopped: " in capsys.readouterr().err


def test_the_card_names_what_auto_has_taken(page):
    lk.KMeans(3, random_state=0, verbose=1).fit(X)
    [[first, *_, last]] = page.values()
    assert "engine" not in cells(first)
    assert cells(last)["engine"].startswith("Truncated: ")


def test_a_mixture_tells_its_objective(page, always):
    mx = lk.Mixture(3, covariance="diag", random_state=0, verbose=1).fit(X)
    [[*_, last]] = page.values()
    told = cells(last)
    assert told["model"] == "mixture (diag) of 3 components"
    assert told["log likelihood"] == f"{mx.log_likelihood_:.8g}"
    # F is told by the last step and by the result, its curve once.
    assert last.count("over the steps") == 1


def test_a_fit_that_fails_says_why(page):
    bad = X.copy()
    bad[17, 2] = np.nan
    with pytest.raises(BadRowsError):
        lk.KMeans(3, verbose=1).fit(bad)
    [[*_, last]] = page.values()
    assert "failed" in last
    assert cells(last)["error"].startswith("BadRowsError: row 17 ")


def test_a_fit_that_is_broken_off_says_so(page):
    def stop(snapshot):
        raise SystemExit

    with pytest.raises(SystemExit):
        lk.KMeans(3, verbose=1, callbacks=[stop]).fit(X)
    [[*_, last]] = page.values()
    assert "cancelled" in last


def test_texts_of_a_card_are_escaped(page, tmp_path):
    same = tmp_path / "<b>x.npy"
    np.save(same, np.ones((50, 2)))
    with pytest.warns(DegenerateDataWarning):
        lk.KMeans(3, random_state=0, verbose=1).fit(same)
    [[*_, last]] = page.values()
    assert "&lt;b&gt;x.npy" in last
    assert "<b>x.npy" not in last


def test_an_estimator_shows_its_model_and_its_engine():
    km = lk.KMeans(3, random_state=0)
    assert "largek_dask model" not in km._repr_html_()
    km.fit(X)
    for shown in (km._repr_html_(), km._repr_mimebundle_()["text/html"]):
        assert "<b>largek_dask model</b>" in shown
        assert cells(shown)["algorithm"] == "Auto (Truncated)"
    mx = lk.Mixture(3, random_state=0).fit(X)
    assert cells(mx._repr_html_())["algorithm"] == "VCGMM"


def test_rows_tell_what_they_are(tmp_path):
    rows = lk.open_rows(X.astype("f4"), sample_weight=np.ones(len(X)))
    told = cells(rows._repr_html_())
    assert told["rows × features"] == "1,200 × 4"
    assert (told["numbers"], told["weighted"], told["lie in"]) == ("float32", "yes", "this process")
    lk.ingest(X, tmp_path / "x<i>.zarr", chunk_rows=100, shuffle=1, progress=False)
    shown = lk.open_rows(tmp_path / "x<i>.zarr")._repr_html_()
    assert "x&lt;i&gt;.zarr" in shown
    assert cells(shown)["order"] == "shuffled"


@pytest.mark.slow
def test_a_real_kernel_shows_one_card():
    """With IPython itself: one display, updated in its place."""
    nbclient, nbformat = needs.module("nbclient"), needs.module("nbformat")
    code = """
    import numpy as np, largek_dask as lk
    x = np.random.default_rng(0).normal(size=(2_000, 3))
    km = lk.KMeans(5, random_state=0, verbose=1).fit(x)
    print(km.inertia_)
    """
    book = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_code_cell(textwrap.dedent(code)), nbformat.v4.new_code_cell("km"),
    ])  # fmt: skip
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    first, second = (cell["outputs"] for cell in book["cells"])
    kinds = [output["output_type"] for output in first]
    assert kinds == ["display_data", "stream"]
    told = cells(first[0]["data"]["text/html"])
    assert "finished" in first[0]["data"]["text/html"]
    assert float(told["inertia"]) == pytest.approx(float(first[1]["text"]), rel=1e-7)
    assert "<b>largek_dask model</b>" in second[0]["data"]["text/html"]
