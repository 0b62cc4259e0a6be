"""Pages about models: well-formed, with nothing from elsewhere, and the figures of the model."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.driver.formatting import human_count, human_seconds
from largek_dask.errors import OutputError, ParameterError
from largek_dask.model import CentersModel
from largek_dask.plots import render
from largek_dask.plots.report import Report, make_report
from tests.helpers.commands import run as invoke
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
            assert name != "src" or (value or "").startswith("data:image/svg+xml;base64,")
    without = re.sub('base64,[^"]*', "", html)
    assert not re.search(r"url\(|@import|https?:|//[a-z]", without)
    # Every chart says what it is of.
    assert all(attributes["alt"] for tag, attributes in found.tags if tag == "img")
    assert html.startswith("<!DOCTYPE html>")
    assert found.count("html", lang="en") == 1
    assert "nan" not in found.text.lower().replace("nanometre", "").split()
    fragment = report._repr_html_()
    Page(fragment)
    body = fragment.partition("<header>")[2].rpartition("</section>")[0]
    assert body
    assert body in html
    # A fragment changes nothing of the page that it stands in.
    for rule in re.sub(r"@media[^{]*\{", "", STYLE).replace("}}", "}").split("}"):
        assert not rule.strip() or rule.strip().startswith(".largek"), rule
    return found


def make_rows(n: int = 600, d: int = 5) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(9, d)) * 5
    return groups[rng.integers(9, size=n)] + rng.normal(size=(n, d))


X = make_rows()


@cache
def fitted() -> lk.KMeans:
    return lk.KMeans(7, random_state=0).fit(X)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `largek fit`: 600 rows in six chunks, seven clusters."""
    folder = tmp_path_factory.mktemp("run")
    zarr.create_array(str(folder / "rows.zarr"), data=X, chunks=(100, 5))
    invoke("fit", folder / "rows.zarr", "-k", 7, "--out", folder / "run")
    return folder


# --- the figures are the model's ------------------------------------------------------------------


def test_a_page_tells_what_the_model_knows(run: Path) -> None:
    model = lk.load_model(str(run / "run" / "model.zarr"))
    report = model.report()
    found = read(report)
    told = model.provenance
    assert found.headings() == [
        "Cost against time", "Sizes", "Nearest rows", "Centres by feature", "Provenance",
    ]  # fmt: skip
    assert "7 clusters of 600 rows × 5" in found.text
    facts = found.facts()
    # Provenance.
    assert facts["digest"] == model.digest()
    assert facts["parameters: n clusters"] == "7"
    assert facts["data: location"] == told["data"]["location"] == str(run / "rows.zarr")
    assert facts["data: content: sha256"] == told["data"]["content"]["sha256"]
    assert facts["versions: numpy"] == told["versions"]["numpy"]
    assert facts["engine: name"] == told["engine"]["name"]
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


# --- kinds of models and rows ---------------------------------------------------------------------


def test_a_mixture() -> None:
    mx = lk.Mixture(5, covariance="diag", random_state=0).fit(X)
    found = read(mx.model_.report())
    assert "5 components of 600 rows" in found.text
    assert "F against time" in found.text
    facts = found.facts()
    assert facts["mean log likelihood"] == f"{mx.score(X):,.7g}"
    assert f"{mx.log_likelihood_:,.7g}" in found.text


def test_every_partition() -> None:
    km = lk.KMeans(6, algorithm="partition-path", random_state=0).fit(X)
    found = read(km.model_.report())
    path = km.path_
    assert "Number of clusters" in found.headings()
    rows = found.column("clusters")
    assert {k: row[0] for k, row in rows.items()} == {
        f"{k}": f"{path.inertia[k - 1]:,.7g}" for k in range(1, 7)
    }
    assert path.suggest_k().words in found.text


@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize("k", [1, 3])
def test_few_clusters_and_columns(k: int, d: int) -> None:
    model = lk.KMeans(k, random_state=0).fit(X[:, :d]).model_
    for shown in (model, CentersModel(model.arrays)):
        assert len(read(shown.report()).column("cluster")) == k


def test_columns_have_their_names() -> None:
    frame = pd.DataFrame(X, columns=["age", "<b>size", "c", "d", "e"])
    found = read(lk.KMeans(3, random_state=0).fit(frame).model_.report())
    assert found.facts()["columns"] == "age, <b>size, c, d, e"
    assert set(found.column("feature")) == set(frame.columns)


def test_empty_clusters_are_said() -> None:
    centers = np.vstack([fitted().cluster_centers_, np.full(5, 1e4)])
    model = CentersModel(CenterArrays(centers, np.append(fitted().model_.counts, 0), np.zeros(5)))
    assert read(model.report()).facts()["empty clusters"] == "1"
    nobody = CentersModel(CenterArrays(centers, np.zeros(8), np.zeros(5)))
    assert "No cluster has rows." in read(nobody.report()).text


def test_costs_on_a_sample_are_a_line_of_their_own() -> None:
    rows = [100, 100, 400, 600, 600]
    history = tuple(
        {"step": i, "cost": 100.0 - i, "rows": n, "seconds": 0.1 * i, "n_changed": None,
         "shift": None, "converged": False, "extra": {"batch_rows": n}}
        for i, n in enumerate(rows, 1)
    )  # fmt: skip
    provenance = {"data": {"content": {"shape": [600, 5]}}}
    report = CentersModel(fitted().model_.arrays, history=history, provenance=provenance).report()
    (cost,) = [s["panel"] for s in report.content["sections"] if s["title"] == "Cost against time"]
    assert {t.name: t.columns["y"] for t in cost.series} == {
        "on a sample": [99, 98, 97], "on all rows": [96, 95]
    }  # fmt: skip
    found = read(report)
    assert {name: row[:2] for name, row in found.column("line").items()} == {
        "on a sample": ["97", "97"], "on all rows": ["95", "95"]
    }  # fmt: skip


def test_a_model_of_nothing_but_arrays() -> None:
    bare = CentersModel(fitted().model_.arrays)
    found = read(bare.report())
    assert "The model contains no history of its fit." in found.text
    assert "7 clusters in 5 columns" in found.text
    assert found.facts()["digest"] == bare.digest()


# --- texts and large pages ----------------------------------------------------------------------


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&amp;\"'\x1b[31m"
    folder = tmp_path / "<b>&quot;"
    folder.mkdir()
    np.save(folder / "x.npy", X)
    km = lk.KMeans(3, random_state=0).fit(str(folder / "x.npy"))
    model = km.model_
    provenance = {**model.provenance, evil: evil, "nested": {evil: [evil]}, "created": evil}
    model = CentersModel(model.arrays, history=model.history, provenance=provenance)
    report = make_report(model, [evil])
    found = read(report)
    assert "<script" not in report.html.lower()
    assert "\x1b" not in report.html
    assert evil.replace("\x1b", " ") in found.text
    assert str(folder) in found.text


def test_very_many_clusters_make_a_small_page() -> None:
    k, rng = 10_000, np.random.default_rng(0)
    centers = rng.normal(size=(k, 8)).astype(np.float32)
    counts = rng.integers(1, 100, size=k).astype(float)
    history = tuple(
        {"step": i, "cost": 1e9 / i, "rows": 100, "seconds": i * 0.1, "n_changed": None,
         "shift": None, "converged": False, "extra": {}}
        for i in range(1, 10_001)
    )  # fmt: skip
    arrays = CenterArrays(centers, counts, np.zeros(8, np.float32))
    model = CentersModel(arrays, history=history, provenance={})
    report = model.report()
    found = read(report)
    assert len(report.html) < 900_000
    assert "The largest 50 clusters" in found.text
    assert "10,000 steps" in found.text
    assert len(found.column("cluster")) == 50
    largest = np.sort(counts)[::-1][:50]
    assert [row[0] for row in found.column("cluster").values()] == [f"{c:,.6g}" for c in largest]


# --- files and the command line -------------------------------------------------------------------


def test_a_page_is_saved(tmp_path: Path) -> None:
    report = fitted().model_.report()
    report.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == report.html
    with pytest.raises(OutputError, match="overwrite=True"):
        report.save(tmp_path / "a.html")
    (tmp_path / "a.html").write_text("x")
    report.save(str(tmp_path / "a.html"), overwrite=True)
    assert (tmp_path / "a.html").stat().st_size > 1_000
    with pytest.raises(OutputError, match="cannot be written"):
        report.save(tmp_path / "no" / "a.html")
    assert repr(report) == "<Report of 7 clusters of 600 rows × 5; save(path) writes it>"


def test_the_command_writes_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    told = json.loads(invoke("report", "run", "--json").stdout)
    model = lk.load_model(str(run / "run" / "model.zarr"))
    html = (run / "run-report.html").read_text()
    assert told["out"] == "run-report.html"
    assert told["bytes"] == (run / "run-report.html").stat().st_size
    assert (told["n_clusters"], told["warnings"]) == (7, [])
    assert model.digest() in html
    assert "--force" in invoke("report", "run", code=1).stderr
    assert "m.html" in invoke("report", "run/model.zarr", "--out", "m.html").stdout
    (run / "empty").mkdir()
    assert "neither a model nor a checkpoint" in invoke("report", "empty", code=1).stderr


def test_the_nearest_rows_are_listed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lk.load_model(str(run / "run" / "model.zarr"))
    ids = [f"<i>row {i}" for i in range(len(X))]
    found = model.exemplars(X, n=3, ids=ids)
    page = read(model.report(found))
    (table,) = [t[1:] for t in page.tables if t[0] == ["cluster", "weight of rows", "ids"]]
    order = np.argsort(-model.counts, kind="stable")
    assert table == [
        [f"{j}", f"{model.counts[j]:,.6g}", ", ".join(found.nearest.ids[j])] for j in order
    ]
    assert "made without rows" in read(model.report()).text
    with pytest.raises(ParameterError, match="exemplars of 7 clusters"):
        lk.KMeans(3, random_state=0).fit(X).model_.report(found)
    # A cluster of two rows, with long ids.
    x = np.array([[0.0], [0.0], [9.0], [9.0], [9.0], [9.0]])
    small = lk.KMeans(2, random_state=0).fit(x).model_
    page = read(small.report(small.exemplars(x, n=3, ids=["x" * 90] * 6)))
    (table,) = [t[1:] for t in page.tables if t[0][-1] == "ids"]
    assert [row[2] for row in table] == [", ".join([f"{'x' * 39}…"] * n) for n in (3, 2)]
    # The command
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"id": ids, "e": list(X)}).to_parquet("x.parquet")
    rows = ("--rows", "x.parquet", "--column", "e")
    invoke("report", run / "run", "--out", "r.html", *rows, "--ids", "id")
    assert (
        f'<td class="words">{escape(found.nearest.ids[order[0], 0])}, '
        in Path("r.html").read_text()
    )
    for asked, message, code in (
        (("--ids", "id"), "require --rows", 2),
        (("--out", "r.png", *rows), ".html", 2),
    ):
        assert message in invoke("report", run / "run", *asked, code=code).stderr
    lk.Mixture(2, random_state=0).fit(X).model_.save("m.zarr")
    assert "no centres" in invoke("report", "m.zarr", *rows, code=1).stderr


def test_warnings_of_the_fit_are_repeated(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "run", tmp_path / "run")
    event = {"event": "warning", "time": "2026-01-01T00:00:00+00:00", "topic": "storage",
             "message": "the <disk> was away"}  # fmt: skip
    (tmp_path / "run" / "events" / "000099.jsonl").write_text(f"{json.dumps(event)}\n" * 3)
    told = json.loads(
        invoke("report", tmp_path / "run", "--out", tmp_path / "r.html", "--json").stdout
    )
    assert told["warnings"] == ["the <disk> was away"]
    assert "the <disk> was away" in Page((tmp_path / "r.html").read_text()).text


def test_a_page_is_written_again_until_the_fit_has_ended(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint, with one, stopped, and with a model."""
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
    assert "--every 30s" in invoke(*asked, code=1).stderr
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
    assert "checkpoint after step" in first["warnings"][0]
    assert second["warnings"] == first["warnings"]
    assert last["warnings"] == []
    assert all('<meta http-equiv="refresh" content="3">' in page for page in pages)
    assert "refresh" not in out.read_text()
    assert lk.load_model(str(place / "model.zarr")).digest() in out.read_text()


def test_a_folder_is_watched_until_the_fit_has_ended(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from largek_dask.cli import jobs as module

    place = tmp_path / "run"
    shutil.copytree(run / "run", place)
    (part,) = (place / "events").iterdir()
    whole = part.read_text()
    part.write_text("".join(whole.splitlines(True)[:3]))
    monkeypatch.setattr(module.time, "sleep", lambda _: part.write_text(whole))
    events = list(map(json.loads, invoke("watch", place, "--json").stdout.splitlines()))
    assert events == list(map(json.loads, whole.splitlines()))
    shown = invoke("watch", place).stdout
    assert " step " in shown
    assert " stopped " in shown
    assert "contains no events" in invoke("watch", tmp_path, code=1).stderr
    assert "--scheduler" in invoke("watch", "lk-0123456789", code=2).stderr


def test_centres_are_compared_feature_by_feature() -> None:
    centers = np.array([[0.0, 5.0, 1.0], [1.0, 5.0, 1.0], [0.0, 5.0, 1.0], [1.0, 5.0, 9.0]])
    arrays = CenterArrays(centers, np.ones(4), np.zeros(3))
    found = read(CentersModel(arrays, feature_names=("a", "b <i>", "c")).report())
    assert list(found.column("feature").items()) == [
        ("c", ["1 (-0.6)", "1 (-0.6)", "1 (-0.6)", "9 (+1.7)"]),
        ("a", ["0 (-1.0)", "1 (+1.0)", "0 (-1.0)", "1 (+1.0)"]),
        ("b <i>", ["5 (+0.0)"] * 4),
    ]


def test_of_many_features_and_clusters_the_largest_are_compared() -> None:
    x = np.random.default_rng(0).normal(size=(300, 60))
    found = read(lk.KMeans(20, random_state=0).fit(x).model_.report())
    assert "8 of 20 clusters" in found.text
    assert "40 of 60 features" in found.text
    rows = found.column("feature")
    assert (len(rows), {len(cells) for cells in rows.values()}) == (40, {8})


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_report_is_shown_by_a_browser_from_itself_alone(
    width: int, scheme: str, tmp_path: Path
) -> None:
    report = make_report(fitted().model_, ["<i>a warning"])
    report.save(tmp_path / "report.html")
    with browser() as found:
        tab = Tab(found, width, scheme)
        tab.page.goto(f"file://{tmp_path}/report.html")
        assert tab.page.locator("img.chart").count() == 2
        widths = "images => images.map(image => image.naturalWidth)"
        assert min(tab.page.locator("img.chart").evaluate_all(widths)) > 0
        assert not tab.scrolls_sideways()
        no_serious_finding(tab)
        assert tab.faults == []
        assert all(at.startswith(("file://", "data:")) for at in tab.requests)
        tab.picture(f"report-{width}-{scheme}")
        tab.close()
