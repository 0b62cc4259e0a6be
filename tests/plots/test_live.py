"""Models and rows in a notebook."""

from __future__ import annotations

import re

import numpy as np

import largek_dask as lk

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.normal(c, 1, size=(400, 4)) for c in (0, 20, 40)])


def cells(html):
    """What a table tells, by name."""
    found = re.findall(r"<tr[^>]*><t[dh][^>]*>(.*?)</t[dh]><td[^>]*>(.*?)</td></tr>", html)
    return {name: re.sub(r"<[^>]*>", "", text) for name, text in found}


def test_a_model_shows_its_engine():
    shown = lk.KMeans(3, random_state=0).fit(X).model_._repr_html_()
    assert "<b>largek_dask model</b>" in shown
    assert cells(shown)["algorithm"] == "Auto (Truncated)"
    mx = lk.Mixture(3, random_state=0).fit(X)
    assert cells(mx.model_._repr_html_())["algorithm"] == "VCGMM"


def test_rows_tell_what_they_are(tmp_path):
    rows = lk.open_rows(X.astype("f4"), sample_weight=np.ones(len(X)))
    told = cells(rows._repr_html_())
    assert told["rows × features"] == "1,200 × 4"
    assert (told["numbers"], told["weighted"], told["location"]) == (
        "float32",
        "yes",
        "this process",
    )
    lk.ingest(X, tmp_path / "x<i>.zarr", chunk_rows=100, shuffle=1, progress=False)
    shown = lk.open_rows(tmp_path / "x<i>.zarr")._repr_html_()
    assert "x&lt;i&gt;.zarr" in shown
    assert cells(shown)["order"] == "shuffled"
