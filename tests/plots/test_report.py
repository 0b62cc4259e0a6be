"""Pages about models: well-formed, with nothing from elsewhere, and the figures of the model."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.cli import main
from largek_dask.driver.formatting import human_count, human_seconds
from largek_dask.errors import BadRowsError, DataError, OutputError, ParameterError
from largek_dask.model import CentersModel
from largek_dask.model.separation import NAMES
from largek_dask.plots import render
from largek_dask.plots.report import Report, make_report
from largek_dask.plots.theme import THEMES
from tests.plots.browser import Tab, browser, no_serious_finding

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

VOID = {"meta", "img", "br"}
STYLE = (Path(render.__file__).parent / "templates" / "style.css").read_text()


class Page(HTMLParser):
    """What a page holds; every element has to be closed where it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self.h2: list[str] = []
        self._cell: list[str] | None = None
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            assert self._cell is not None
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            return
        self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.h2.append(data)
        if self._cell is not None:
            self._cell.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str, **attributes: str) -> int:
        return sum(
            found == tag and all(values.get(k) == v for k, v in attributes.items())
            for found, values in self.tags
        )

    def headings(self) -> list[str]:
        return self.h2

    def column(self, first: str) -> dict[str, list[str]]:
        """The rows of the table that begins with this heading, by their first cell."""
        [found] = [t for t in self.tables if t[0][0] == first]
        return {row[0]: row[1:] for row in found[1:]}

    def facts(self) -> dict[str, str]:
        """All tables of names and values together."""
        return {row[0]: row[1] for t in self.tables for row in t if len(row) == 2}


def read(report: Report) -> Page:
    """A page, checked for what holds for all of them."""
    html = report.html
    found = Page(html)
    # Nothing is loaded: no address but the data of pictures, no script, no rule that fetches.
    for tag, attributes in found.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("href", "action", "srcset")
            if name == "xlink:href":
                assert (value or "").startswith("#")
            if name == "src":
                assert (value or "").startswith("data:image/png;base64,")
    without = re.sub(r"base64,[^\"]*|url\(#", "", html)
    assert not re.search(r"url\(|@import|https?:|//[a-z]", without)
    # Every picture and chart says what it is of.
    assert all(values.get("alt") for tag, values in found.tags if tag == "img")
    charts = html.count('<svg class="chart"')
    assert found.count("svg") == html.count('role="img"><title>') == found.count("desc") == charts
    assert html.startswith("<!DOCTYPE html>")
    assert found.count("html", lang="en") == 1
    assert "nan" not in found.text.lower().replace("nanometre", "").split()
    fragment = report._repr_html_()
    Page(fragment)
    body = fragment.partition("<header>")[2].partition("<footer>")[0]
    assert body
    assert body in html
    # A fragment changes nothing of the page that it stands in.
    for rule in re.sub(r"@media[^{]*\{", "", STYLE).replace("}}", "}").split("}"):
        assert not rule.strip() or rule.strip().startswith(".largek"), rule
    json.dumps(report.figures, allow_nan=False)
    return found


def make_rows(n: int = 600, d: int = 5) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(9, d)) * 5
    return groups[rng.integers(9, size=n)] + rng.normal(size=(n, d))


X = make_rows()
KM = lk.KMeans(7, random_state=0).fit(X)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `largek fit`: 600 rows in six chunks, seven clusters."""
    folder = tmp_path_factory.mktemp("run")
    zarr.create_array(str(folder / "rows.zarr"), data=X, chunks=(100, 5))
    invoke("fit", folder / "rows.zarr", "-k", 7, "--out", folder / "run")
    return folder


def invoke(*arguments: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


# --- the figures are the model's ------------------------------------------------------------------


def test_a_page_tells_what_the_model_knows(run: Path) -> None:
    model = lk.load_model(str(run / "run" / "model.zarr"))
    report = model.report()
    found = read(report)
    told = model.provenance
    assert found.headings() == [
        "Quality", "Cost against time", "Sizes", "Centres", "Centres by feature",
        "Rows near and far",
        "Where it comes from",
    ]  # fmt: skip
    assert "7 clusters of 600 rows × 5" in found.text
    facts = found.facts()
    # Provenance.
    assert facts["digest"] == model.digest()
    assert facts["n clusters"] == "7"
    assert facts["location"] == told["data"]["location"] == str(run / "rows.zarr")
    assert facts["content: sha256"] == told["data"]["content"]["sha256"]
    assert facts["numpy"] == told["versions"]["numpy"]
    assert facts["name"] == told["engine"]["name"]
    assert f"{told['inertia']:,.7g}" in found.text
    assert human_seconds(told["seconds"]) in found.text
    # Cost against time.
    assert found.column("line")["on all rows"][0] == f"{model.history[-1]['cost']:.8g}"
    assert f"{len(model.history):,} steps" in found.text
    # Sizes.
    counts = model.counts
    assert facts["most"] == human_count(counts.max())
    assert facts["median"] == human_count(np.median(counts))
    assert {j: row[0] for j, row in found.column("cluster").items()} == {
        f"{j}": f"{count:,.6g}" for j, count in enumerate(counts)
    }
    # Scores.
    scores = {name: getattr(lk.scores, name)(model, X) for name in NAMES}
    assert report.figures["scores"] == scores
    assert [row[0] for row in found.column("score").values()] == [
        f"{score:,.5g}" for score in scores.values()
    ]
    assert "Of all rows (600)." in found.text
    assert report.figures["warnings"] == []
    # Every centre is a circle with its number.
    drawn = circles_of(report)
    assert 580 <= drawn.pop("rows") <= 600
    assert drawn == {"centres": 1, "centres shown below": 6}
    assert labels_of(report) == [f"{j}" for j in range(7)]


def centers_of(report: Report) -> Any:
    """The panel of centres."""
    (panel,) = [s["panel"] for s in report.content["sections"] if s["title"] == "Centres"]
    return panel


def circles_of(report: Report) -> dict[str, int]:
    """How many rows and centres are drawn, by their names in the legend."""
    return {trace.name: len(trace.columns["x"]) for trace in centers_of(report).series}


def n_circles(report: Report) -> int:
    return sum(n for name, n in circles_of(report).items() if name != "rows")


def labels_of(report: Report) -> list[str]:
    labels = [label for t in centers_of(report).series for label in t.columns.get("label", ())]
    labels = sorted(filter(None, labels), key=int)
    assert all(f">{label}</text>" in report.html for label in labels)
    return labels


def test_rows_near_and_far_are_the_nearest_and_farthest(run: Path) -> None:
    model = lk.load_model(str(run / "run" / "model.zarr"))
    names = [f"row no {i}" for i in range(600)]
    report = model.report(clusters=[3, 5], names=names)
    found = read(report)
    labels = model.predict(X)
    distances = np.linalg.norm(X - model.centers[labels], axis=1)
    tables = [t for t in found.tables if t[0] == ["row", "distance", "name"]]
    assert len(tables) == 4
    for table, (j, sign) in zip(tables, [(3, 1), (3, -1), (5, 1), (5, -1)], strict=True):
        own = np.flatnonzero(labels == j)
        expected = own[np.argsort(sign * distances[own])][:5]
        assert [row[0] for row in table[1:]] == [f"{i}" for i in expected]
        assert [row[1] for row in table[1:]] == [f"{distances[i]:.4g}" for i in expected]
        assert [row[2] for row in table[1:]] == [names[i] for i in expected]
    assert report.figures["clusters_shown"] == [3, 5]
    assert f"mean distance {distances[labels == 3].mean():.4g}" in found.text


def test_chunks_and_workers_change_nothing(run: Path, worker_clients: Any) -> None:
    model = lk.load_model(str(run / "run" / "model.zarr"))
    assert lk.open_rows(str(run / "rows.zarr")).n_chunks == 6
    for sample in (None, 300):
        expected = model.report(X, sample=sample).html
        assert model.report(sample=sample, n_threads=3).html == expected
        assert model.report(sample=sample, client=worker_clients(2)).html == expected
        assert ("Of a sample of 300 of 600 rows." in expected) == (sample is not None)


def test_a_sample_has_standard_errors() -> None:
    report = KM.model_.report(X, sample=200, seed=3)
    found = read(report)
    score = lk.scores.silhouette(KM, X, sample=200, random_state=3)
    assert report.figures["scores"]["silhouette"] == score
    assert report.figures["scores"]["silhouette_standard_error"] == score.standard_error
    assert f"{score:,.5g} ± {score.standard_error:.2g}" in found.text
    assert "Of a sample of 200 of 600 rows." in found.text
    assert report.figures["n_rows_looked_at"] == 200


def test_weights_count() -> None:
    weight = np.random.default_rng(1).choice([0.0, 1.0, 2.0], len(X))
    km = lk.KMeans(4, random_state=0).fit(X, sample_weight=weight)
    report = km.model_.report(X, sample_weight=weight)
    found = read(report)
    assert report.figures["warnings"] == []
    assert report.figures["n_rows_looked_at"] == np.count_nonzero(weight)
    assert report.figures["scores"]["silhouette"] == lk.scores.silhouette(
        km, X, sample_weight=weight
    )
    # A row of no weight is not there.
    shown = {int(row[0]) for t in found.tables if t[0][:2] == ["row", "distance"] for row in t[1:]}
    assert shown
    assert weight[list(shown)].all()
    # Without them it says so.
    told = km.model_.report(X).figures["warnings"]
    assert told == [
        "The rows that are shown are not those of the fit. "
        "There were row weights before, and there are none now."
    ]


# --- kinds of models and rows ---------------------------------------------------------------------


def test_a_mixture() -> None:
    mx = lk.Mixture(5, covariance="diag", random_state=0).fit(X)
    found = read(mx.model_.report(X))
    assert "5 components of 600 rows" in found.text
    assert "F against time" in found.text
    facts = found.facts()
    assert facts["mean log likelihood"] == f"{mx.score(X):,.7g}"
    assert f"{mx.log_likelihood_:,.7g}" in found.text


def test_every_partition() -> None:
    km = lk.KMeans(6, algorithm="dcdbundle", random_state=0).fit(X)
    found = read(km.model_.report(X))
    path = km.path_
    assert "Number of clusters" in found.headings()
    rows = found.column("clusters")
    assert {k: row[0] for k, row in rows.items()} == {
        f"{k}": f"{path.inertia[k - 1]:,.7g}" for k in range(1, 7)
    }
    assert path.suggest_k().words in found.text


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_few_clusters_and_columns(k: int, d: int) -> None:
    km = lk.KMeans(k, random_state=0).fit(X[:, :d])
    report = km.model_.report(X[:, :d])
    found = read(report)
    assert n_circles(report) == k
    if k == 1:
        assert report.figures["scores"] == {}
        [told] = report.figures["warnings"]
        assert told.startswith("There are no scores: 1 cluster has rows")
        assert told in found.text
    else:
        assert len(report.figures["scores"]) == 3
    # Without rows as well.
    bare = CentersModel(km.model_.arrays)
    read(bare.report())
    assert n_circles(bare.report()) == k


def test_one_row_and_equal_rows() -> None:
    for x in (X[:1], np.ones((8, 3)), np.zeros((5, 1))):
        model = lk.KMeans(1, random_state=0).fit(x).model_
        read(model.report(x))


def test_sparse_rows() -> None:
    csr = sp.csr_matrix(np.where(X > 3, X, 0))
    km = lk.KMeans(4, random_state=0).fit(csr)
    report = km.model_.report(csr, clusters=[0])
    found = read(report)
    assert report.figures["n_rows_looked_at"] == 600
    own = np.flatnonzero(km.labels_ == 0)
    distances = np.linalg.norm(csr.toarray() - km.cluster_centers_[0], axis=1)
    tables = [t for t in found.tables if t[0][:2] == ["row", "distance"]]
    assert int(tables[1][1][0]) in own[distances[own] == distances[own].max()]


def test_rows_that_are_skipped_are_not_shown() -> None:
    x = X.copy()
    x[[0, 5]] = np.nan
    km = lk.KMeans(5, random_state=0, on_bad_rows="skip").fit(x)
    report = km.model_.report(x)
    read(report)
    assert report.figures["n_rows_looked_at"] == 598
    with pytest.raises(BadRowsError):
        KM.model_.report(x)


def test_columns_have_their_names() -> None:
    import pandas as pd

    frame = pd.DataFrame(X, columns=["age", "<b>size", "c", "d", "e"])
    model = lk.KMeans(3, random_state=0).fit(frame).model_
    report = model.report(frame, clusters=[0])
    found = read(report)
    assert found.facts()["columns"] == "age, <b>size, c, d, e"
    assert report.figures["warnings"] == []
    nearest = next(t for t in found.tables if t[0][:2] == ["row", "distance"])[1]
    x = X[int(nearest[0])]
    assert nearest[2] == f"age {x[0]:.3g}, <b>size {x[1]:.3g}, c {x[2]:.3g}, d {x[3]:.3g}, …"
    # Columns in another order are the same rows; without names that is said, once.
    assert model.report(frame[frame.columns[::-1]], clusters=[0]).html == report.html
    [told] = model.report(X).figures["warnings"]
    assert "no names of columns" in told


def test_dithered_rows_are_those_of_the_fit() -> None:
    x = np.random.default_rng(0).integers(0, 9, size=(300, 4)).astype(np.uint8)
    mx = lk.Mixture(3, dither=True, random_state=0).fit(x)
    report = mx.model_.report(x)
    assert report.figures["warnings"] == []
    assert report.figures["scores"]["silhouette"] == lk.scores.silhouette(mx, x)


def test_empty_clusters_are_said() -> None:
    centers = np.vstack([KM.cluster_centers_, np.full(5, 1e4)])
    model = CentersModel(CenterArrays(centers, np.append(KM.model_.counts, 0), np.zeros(5)))
    report = model.report(X, clusters=[7])
    found = read(report)
    assert "1 of 8 clusters have no rows." in report.figures["warnings"]
    assert "none of the rows that were looked at" in found.text
    # It is not drawn: it has no rows.
    assert n_circles(report) == 7
    nobody = CentersModel(CenterArrays(centers, np.zeros(8), np.zeros(5)))
    assert "No cluster has rows." in read(nobody.report()).text


def test_how_a_fit_ended_is_said() -> None:
    km = lk.KMeans(7, algorithm="lloyd", random_state=0, max_iter=1, tol=0).fit(X)
    assert km.stop_reason_ == "max_iter"
    report = km.model_.report(X)
    assert "used up its steps (max_iter)" in read(report).text
    assert len(report.figures["warnings"]) == 1


def test_costs_on_a_sample_are_a_line_of_their_own() -> None:
    rows = [100, 100, 400, 600, 600]
    history = tuple(
        {"step": i, "cost": 100.0 - i, "rows": n, "seconds": 0.1 * i, "n_changed": None,
         "shift": None, "converged": False, "extra": {"batch_rows": n}}
        for i, n in enumerate(rows, 1)
    )  # fmt: skip
    provenance = {"data": {"content": {"shape": [600, 5]}}}
    report = CentersModel(KM.model_.arrays, history=history, provenance=provenance).report()
    (cost,) = [s["panel"] for s in report.content["sections"] if s["title"] == "Cost against time"]
    assert {t.name: t.columns["y"] for t in cost.series} == {
        "on a sample": [99, 98, 97], "on all rows": [96, 95]
    }  # fmt: skip
    found = read(report)
    assert {name: row[:2] for name, row in found.column("line").items()} == {
        "on a sample": ["97", "97"], "on all rows": ["95", "95"]
    }  # fmt: skip


# --- rows that are not there ----------------------------------------------------------------------


def test_rows_that_were_in_memory() -> None:
    report = KM.model_.report()
    found = read(report)
    assert "Rows near and far" not in found.headings()
    assert "Sizes" in found.headings()
    [told] = report.figures["warnings"]
    assert told.startswith("The rows were in memory")
    assert report.figures["n_rows_looked_at"] is None


def test_rows_that_are_gone_or_changed(tmp_path: Path) -> None:
    url = tmp_path / "rows.zarr"
    zarr.create_array(str(url), data=X, chunks=(100, 5))
    model = lk.KMeans(4, random_state=0).fit(str(url)).model_
    assert model.report().figures["warnings"] == []
    zarr.create_array(str(url), data=X[:300], chunks=(100, 5), overwrite=True)
    report = model.report()
    [told] = report.figures["warnings"]
    assert "not those of the fit. The data had shape (600, 5) and have shape (300, 5) now" in told
    assert "Of rows other than those of the fit (300)." in read(report).text
    # A chunk is lost: what was found until then is of no use.
    next(path for path in sorted((url / "c").rglob("*")) if path.is_file()).unlink()
    zarr.open_array(str(url)).attrs["largek"] = {"format": 1, "complete": True}
    (url / "zarr.json").rename(tmp_path / "aside")
    report = model.report()
    [told] = report.figures["warnings"]
    assert told.startswith("The rows cannot be read any more")
    assert "Rows near and far" not in read(report).headings()
    # Who gives rows is told what is wrong with them.
    with pytest.raises(DataError):
        model.report(str(url))


def test_a_model_of_nothing_but_arrays() -> None:
    bare = CentersModel(KM.model_.arrays)
    found = read(bare.report())
    assert "The model holds no history of its fit." in found.text
    assert "7 clusters in 5 columns" in found.text
    assert found.facts()["digest"] == bare.digest()
    with_rows = read(bare.report(X))
    assert "Rows near and far" in with_rows.headings()


def test_a_kind_without_centres() -> None:
    class Other(CentersModel):
        def _cluster_centers(self) -> Any:
            return None

    found = read(make_report(Other(KM.model_.arrays), X))
    assert found.headings() == ["Cost against time", "Sizes", "Where it comes from"]


# --- pictures, names, large pages -----------------------------------------------------------------


def decoded(source: str) -> NDArray[np.uint8]:
    """The pixels of a picture in a page."""
    data = base64.b64decode(source.partition("base64,")[2])
    width, height = (int.from_bytes(data[i : i + 4]) for i in (16, 20))
    channels = {0: 1, 2: 3}[data[25]]
    start = data.index(b"IDAT")
    length = int.from_bytes(data[start - 4 : start])
    body = data[start + 4 : start + 4 + length]
    assert int.from_bytes(data[start + 4 + length : start + 8 + length]) == zlib.crc32(
        data[start : start + 4 + length]
    )
    lines = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, channels)


def sources(found: Page) -> dict[str, str]:
    return {str(v["alt"]): str(v["src"]) for tag, v in found.tags if tag == "img"}


def test_rows_are_pictures() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(40, 4 * 2 * 3)).astype(np.uint8)
    km = lk.KMeans(2, random_state=0).fit(x)
    found = read(km.model_.report(x, image="4x2x3", clusters=[1]))
    shown = sources(found)
    centre = decoded(shown.pop("centre of cluster 1"))
    expected = np.rint(km.cluster_centers_[1]).astype(np.uint8).reshape(4, 2, 3)
    np.testing.assert_array_equal(centre, expected)
    assert len(shown) >= 5
    for words, source in shown.items():
        row = int(words.rpartition(" ")[2])
        assert km.labels_[row] == 1
        np.testing.assert_array_equal(decoded(source), x[row].reshape(4, 2, 3))
    # Numbers of another type are shown from the least to the largest.
    grey = read(km.model_.report(x / 255.0, image=(6, 4), clusters=[0]))
    pixels = [decoded(source) for source in sources(grey).values()]
    assert {part.shape for part in pixels} == {(6, 4, 1)}
    # Without rows the centres are shown.
    bare = read(CentersModel(km.model_.arrays).report(image="4x2x3"))
    assert bare.headings() == ["Cost against time", "Sizes", "Centres", "Centres as pictures",
                               "Where it comes from"]  # fmt: skip
    assert set(sources(bare)) == {"centre of cluster 0", "centre of cluster 1"}


def test_pixels_are_in_one_scale() -> None:
    x = np.vstack([np.zeros((5, 4)), np.full((5, 4), 2.0)])
    km = lk.KMeans(2, random_state=0).fit(x)
    pixels = {w: decoded(s) for w, s in sources(read(km.model_.report(x, image="2x2"))).items()}
    values = {w: set(part.reshape(-1).tolist()) for w, part in pixels.items()}
    dark = int(km.labels_[0])
    assert values[f"centre of cluster {dark}"] == {0}
    assert values[f"centre of cluster {1 - dark}"] == {255}


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&amp;\"'\x1b[31m"
    folder = tmp_path / "<b>&quot;"
    folder.mkdir()
    np.save(folder / "x.npy", X)
    km = lk.KMeans(3, random_state=0).fit(str(folder / "x.npy"))
    model = km.model_
    provenance = {**model.provenance, evil: evil, "nested": {evil: [evil]}, "created": evil}
    model = CentersModel(model.arrays, history=model.history, provenance=provenance)
    for image in (None, "5x1"):
        report = make_report(model, names=[evil] * 600, warnings=[evil], image=image)
        found = read(report)
        assert "<script" not in report.html.lower()
        assert "\x1b" not in report.html
        assert evil.replace("\x1b", " ") in found.text or image
        assert str(folder) in found.text


def test_long_texts_are_cut() -> None:
    provenance = {"parameters": {"init": "x" * 10_000}}
    model = CentersModel(KM.model_.arrays, provenance=provenance)
    report = model.report(X, names=["y" * 10_000] * 600)
    assert len(report.html) < 120_000
    assert "x" * 300 in report.html
    assert "x" * 500 not in report.html


@pytest.mark.slow  # compiles the kernels of very many clusters
@pytest.mark.parametrize("k", [10_000])
def test_very_many_clusters_make_a_small_page(k: int) -> None:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(k, 8)).astype(np.float32)
    counts = rng.integers(1, 100, size=k).astype(float)
    history = tuple(
        {"step": i, "cost": 1e9 / i, "rows": 100, "seconds": i * 0.1, "n_changed": None,
         "shift": None, "converged": False, "extra": {}}
        for i in range(1, 10_001)
    )  # fmt: skip
    arrays = CenterArrays(centers, counts, np.zeros(8, np.float32))
    model = CentersModel(arrays, history=history, provenance={})
    report = model.report(centers[:3_000])
    found = read(report)
    assert len(report.html) < 500_000
    assert n_circles(report) == 1_000
    assert 40 <= len(labels_of(report)) <= 40 + len(report.figures["clusters_shown"])
    assert "The largest 1,000 are drawn." in found.text
    assert "The largest 50 clusters" in found.text
    assert "10,000 steps" in found.text
    assert len(found.column("cluster")) == 50
    largest = np.sort(counts)[::-1][:50]
    assert [row[0] for row in found.column("cluster").values()] == [f"{c:,.6g}" for c in largest]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"clusters": [7]}, "clusters are numbered from 0 to 6, and 7 is none"),
        ({"clusters": ["a"]}, "numbered from 0 to 6"),
        ({"image": "5"}, "no shape of a picture"),
        ({"image": "0x5"}, "no shape of a picture"),
        ({"image": "axb"}, "no shape of a picture"),
        ({"image": "5x1x2"}, "no shape of a picture"),
        ({"image": "2x2"}, "has 4 numbers, and a row has 5"),
        ({"names": ["a"]}, "there are 1 names and 600 rows"),
        ({"names": "abc"}, "one text a row"),
        ({"sample": 1}, "sample must be None or a number of rows"),
        ({"sample": 2.5}, "sample must be None or a number of rows"),
    ],
)
def test_what_cannot_be_shown_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        KM.model_.report(X, **asked)


def test_names_need_rows() -> None:
    with pytest.raises(ParameterError, match="names= are of rows"):
        KM.model_.report(names=["a"] * 600)
    with pytest.raises(ParameterError, match="rows have 4 features"):
        KM.model_.report(X[:, :4])


# --- files and the command line -------------------------------------------------------------------


def test_a_page_is_saved(tmp_path: Path) -> None:
    report = KM.model_.report(X)
    report.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == report.html
    with pytest.raises(OutputError, match="exists already; nothing was changed"):
        report.save(tmp_path / "a.html")
    (tmp_path / "a.html").write_text("x")
    report.save(str(tmp_path / "a.html"), overwrite=True)
    assert (tmp_path / "a.html").stat().st_size > 1_000
    with pytest.raises(OutputError, match="cannot be written"):
        report.save(tmp_path / "no" / "a.html")
    assert repr(report) == "<Report of 7 clusters of 600 rows × 5; save(path) writes it>".replace(
        " × ", "\u00a0×\u00a0"
    )


def test_the_command_writes_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    told = json.loads(invoke("report", "run", "--json").stdout)
    model = lk.load_model(str(run / "run" / "model.zarr"))
    html = (run / "run-report.html").read_text()
    assert told["out"] == "run-report.html"
    assert told["bytes"] == (run / "run-report.html").stat().st_size
    assert told["scores"]["silhouette"] == lk.scores.silhouette(model, X)
    assert (told["n_clusters"], told["n_rows_looked_at"], told["warnings"]) == (7, 600, [])
    assert model.digest() in html
    assert "exists: choose another --out, or --force" in invoke("report", "run", code=1).stderr
    shown = invoke("report", "run/model.zarr", "--out", "m.html", "--sample", 100).stdout
    assert "m.html" in shown
    assert "100" in shown
    assert "1 sample" not in invoke("report", "run", "--force", "--sample", 50).stdout


def test_options_of_the_command(run: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(f"<i>name {i}" for i in range(600)))
    np.save(tmp_path / "other.npy", X[:200])
    out = tmp_path / "r.html"

    def page_of(*arguments: Any) -> Page:
        invoke("report", run / "run", "--out", out, "--force", *arguments)
        return Page(out.read_text())

    assert "<i>name" in page_of("--names", tmp_path / "names.txt").text
    found = page_of("--clusters", "2,4", "--image", "5x1")
    assert {alt[:19] for alt in sources(found) if alt.startswith("centre")} == {
        "centre of cluster 2", "centre of cluster 4",
    }  # fmt: skip
    found = page_of("--data", tmp_path / "other.npy")
    assert "Of rows other than those of the fit (200)." in found.text

    def refused(*arguments: Any, code: int = 1) -> str:
        done = invoke("report", run / "run", "--out", tmp_path / "no.html", *arguments, code=code)
        assert not (tmp_path / "no.html").exists()
        return str(done.stderr)

    assert "is no list of clusters" in refused("--clusters", "a,b", code=2)
    assert "numbered from 0 to 6" in refused("--clusters", "9")
    assert "cannot be read" in refused("--names", tmp_path / "none.txt")
    (tmp_path / "few.txt").write_text("a")
    assert "there are 1 names and 600 rows" in refused("--names", tmp_path / "few.txt")
    (tmp_path / "empty").mkdir()
    done = invoke("report", tmp_path / "empty", code=1)
    assert "neither a model nor a checkpoint" in done.stderr


def test_warnings_of_the_fit_are_repeated(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run / "run", tmp_path / "run")
    event = {"event": "warning", "time": "2026-01-01T00:00:00+00:00", "topic": "storage",
             "message": "the <disk> was away"}  # fmt: skip
    (tmp_path / "run" / "events" / "000099.jsonl").write_text(f"{json.dumps(event)}\n" * 3)
    told = json.loads(
        invoke("report", tmp_path / "run", "--out", tmp_path / "r.html", "--json").stdout
    )
    assert told["warnings"] == ["the <disk> was away"]
    assert "the <disk> was away" in Page((tmp_path / "r.html").read_text()).text


def test_a_fit_that_runs_is_shown_by_its_last_checkpoint(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from largek_dask.cli import report as module

    place, out = tmp_path / "run", tmp_path / "r.html"
    shutil.copytree(run / "run", place)
    (part,) = (place / "events").iterdir()
    whole = part.read_text()
    begun = [line for line in whole.splitlines(True) if '"event":"stopped"' not in line]
    for name in ("checkpoints", "model.zarr"):
        (place / name).rename(tmp_path / name)
    part.write_text("".join(begun))
    asked = ("report", place, "--out", out)
    assert "add --every 30s" in invoke(*asked, code=1).stderr
    pages = []

    def checkpoint() -> None:
        assert not out.exists()
        (tmp_path / "checkpoints").rename(place / "checkpoints")

    def stop() -> None:
        pages.append(out.read_text())
        part.write_text(whole)

    def end() -> None:
        pages.append(out.read_text())
        (tmp_path / "model.zarr").rename(place / "model.zarr")

    pauses = [checkpoint, stop, end]
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pauses.pop(0)())
    lines = invoke(*asked, "--every", "2.5s", "--json").stdout.splitlines()
    first, second, last = map(json.loads, lines)
    assert "its checkpoint after step" in first["warnings"][0]
    assert second["warnings"] == first["warnings"]
    assert last["warnings"] == []
    assert all('<meta http-equiv="refresh" content="3">' in page for page in pages)
    assert "refresh" not in out.read_text()
    assert lk.load_model(str(place / "model.zarr")).digest() in out.read_text()


# --- colours --------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_words_can_be_read_on_light_and_on_dark_paper() -> None:
    """WCAG 2: 4.5 for text, 3 for what is drawn."""
    light, dark = re.split(r"prefers-color-scheme:dark", STYLE, maxsplit=1)
    schemes = [dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]+)", part)) for part in (light, dark)]
    assert schemes[0].keys() == schemes[1].keys()
    assert len(schemes[0]) >= 10
    for theme, colors in zip(THEMES.values(), schemes, strict=True):
        # Charts by Bokeh and by matplotlib have the same colours.
        assert list(theme.lines) == [colors[f"line{i}"] for i in range(6)]
        assert (theme.ink, theme.quiet) == (colors["ink"], colors["quiet"])
        assert luminance(theme.paper) == luminance(colors["paper"])

        def contrast(a: str, b: str, colors: dict[str, str] = colors) -> float:
            low, high = sorted((luminance(colors[a]), luminance(colors[b])))
            return (high + 0.05) / (low + 0.05)

        for paper in ("paper", "panel"):
            assert contrast("ink", paper) > 7
            assert contrast("quiet", paper) > 4.5
        assert contrast("ink", "warn") > 7
        for drawn in ("blue", "orange"):
            assert contrast(drawn, "paper") > 4.5
        assert min(contrast(f"line{i}", "paper") for i in range(6)) > 3


def test_centres_are_compared_feature_by_feature() -> None:
    rng = np.random.default_rng(0)
    # Two groups of equal size that differ in the second feature alone.
    x = rng.normal(size=(400, 3)) * [1e-3, 1.0, 1e4]
    x[200:, 1] += 20
    x[:, 2] *= 1e-9
    frame = pd.DataFrame(x, columns=["small", "telling <b>", "large"])
    km = lk.KMeans(2, init=x[[0, 399]], algorithm="lloyd").fit(frame)
    report = km.model_.report(frame)
    html = report.html
    listed = html.split("<h2>Centres by feature</h2>")[1].split("</table>")[0]
    assert re.findall(r'scope="row">([^<]*)<', listed)[0] == "telling &lt;b&gt;"
    first = listed.split("<tr>")[2]
    assert sorted(re.findall(r"<small>([-+][0-9.]+)</small>", first)) == ["+1.0", "-1.0"]
    assert {"above", "below"} == set(re.findall(r'class="heat (\w+)"', first))
    # Both circles have the number of their cluster.
    assert labels_of(report) == ["0", "1"]


def test_of_many_features_and_clusters_the_largest_are_compared() -> None:
    x = np.random.default_rng(0).normal(size=(300, 60))
    html = lk.KMeans(20, random_state=0).fit(x).model_.report(x).html
    listed = html.split("<h2>Centres by feature</h2>")[1].split("</table>")[0]
    assert "8 of 20 clusters" in listed
    assert "40 of 60 features" in listed
    assert listed.count("<small>") == 8 * 40


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_report_is_shown_by_a_browser_from_itself_alone(
    width: int, scheme: str, tmp_path: Path
) -> None:
    report = make_report(KM.model_, X, warnings=["<i>a warning"])
    report.save(tmp_path / "report.html")
    with browser() as found:
        tab = Tab(found, width, scheme)
        tab.page.goto(f"file://{tmp_path}/report.html")
        assert tab.page.locator("svg.chart").count() == 3
        # The chart has the colours of the theme.
        line = tab.page.evaluate(
            """() => [...document.querySelectorAll("svg.chart path")].map(
                path => getComputedStyle(path).stroke)"""
        )
        color = THEMES[scheme].lines[0].lstrip("#")
        assert f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (0, 2, 4))})" in line
        # Text in a chart is at least 8 pixels high.
        sizes = tab.page.evaluate(
            """() => [...document.querySelectorAll("svg.chart text")].map(
                text => text.getBoundingClientRect().height)"""
        )
        assert min(sizes) >= 8
        assert not tab.scrolls_sideways()
        no_serious_finding(tab)
        assert tab.faults == []
        assert all(at.startswith(("file://", "data:")) for at in tab.requests)
        tab.picture(f"report-{width}-{scheme}")
        tab.close()
