"""The documentation site builds without warnings, is complete, and can be used in a browser."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import numpy as np
import pytest
import yaml

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.service.metrics import JOB_METRICS
from tests.helpers import browser, needs
from tests.package.test_config import settings

needs.module("sphinx")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES = ["index", "start/data", "reference/cli", "reference/python/estimators", "made/readme"]
NOTEBOOKS = [
    f"made/tutorials/{notebook.stem}" for notebook in sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built as CI builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-E", "-d", str(folder / "read")]
    done = subprocess.run(
        [sys.executable, *command, str(DOCS), str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return folder / "html"


class Read(HTMLParser):
    """Text of a page's article, and what the page loads."""

    def __init__(self, path):
        super().__init__()
        self.text, self.loaded, self._inside = "", [], 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self._inside += tag == "article"
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(named.get("src"))
        elif tag == "link" and named.get("rel") not in ("prev", "next", "index", "author"):
            self.loaded.append(named.get("href"))

    def handle_endtag(self, tag):
        self._inside -= tag == "article"

    def handle_data(self, data):
        if self._inside:
            self.text += data


def text_of(site, page):
    return " ".join(Read(site / f"{page}.html").text.split())


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = [address for address in Read(page).loaded if address not in (None, "", "#")]
        assert len(loaded) > 5
        for address in loaded:
            assert not re.match(r"(\w+:)?//", address), (page, address)
            assert (page.parent / address.split("?")[0]).exists(), (page, address)


def test_every_public_name_has_a_place(site):
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        found = InventoryFile.load(file, "", lambda base, uri: uri)
    named = {name for kind, entries in found.items() if kind.startswith("py:") for name in entries}
    wanted = {f"largek_dask.{name}" for name in lk.__all__ if name != "__version__"}
    helpers = {"warn", "handle_warnings"}
    wanted |= {f"largek_dask.errors.{name}" for name in set(lk.errors.__all__) - helpers}
    wanted |= {f"largek_dask.scores.{name}" for name in lk.scores.__all__}
    wanted |= {"largek_dask.KMeans.fit", "largek_dask.service.job.Job.watch"}
    assert wanted <= named


def test_every_command_and_option_is_documented(site):
    page = (site / "reference" / "cli.html").read_text()
    found = re.findall(r'<section id="largek-([\w-]+)">(.*?)(?=<section id=|\Z)', page, re.DOTALL)
    sections = dict(found)
    commands = {name: command for name, command in main.commands.items() if not command.hidden}
    assert len(commands) >= 18
    for name, command in commands.items():
        part = sections[name]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert all(flag in part for flag in parameter.opts), (name, parameter.opts)
            else:
                assert parameter.human_readable_name in part


def test_every_setting_is_documented_with_its_default(site):
    text = text_of(site, "reference/configuration")
    found = list(settings())
    assert len(found) > 20
    for name, default, described in found:
        assert name in text
        assert yaml.safe_dump(default).splitlines()[0] in text
        assert " ".join(described["description"].replace("`", "").split()) in text


def test_every_metric_is_documented(site):
    text = text_of(site, "reference/metrics")
    for name, (kind, says) in JOB_METRICS.items():
        total = "_total" if kind == "counter" else ""
        assert f" largek_job_{name}{total} " in text
        assert says.rstrip(".") in text


def emitted():
    """Kinds and fields of the events that the code sends, as far as it names them."""
    kinds, fields = set(), set()
    for path in (ROOT / "largek_dask").rglob("*.py"):
        if "cli" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="emit" | "_emit"),
                    args=[ast.Constant(str(kind)), *_],
                    keywords=keywords,
                ):
                    kinds.add(kind)
                    fields |= {keyword.arg for keyword in keywords if keyword.arg}
    return kinds, fields


def test_every_event_is_documented(site):
    text = text_of(site, "reference/events")
    kinds, fields = emitted()
    assert {"step", "waiting", "labels"} <= kinds
    assert {"elapsed", "topic", "n_rows"} <= fields
    lacking = [name for name in kinds | fields if not re.search(rf"\b{name}\b", text)]
    assert not lacking


def test_every_field_of_a_real_fit_is_documented(site, tmp_path):
    text = text_of(site, "reference/events")
    x = np.random.default_rng(0).normal(size=(5_000, 4)).astype(np.float32)
    lk.KMeans(8, n_init=2, random_state=0, algorithm="lloyd", checkpoint=str(tmp_path / "run")).fit(
        x
    )
    parts = sorted((tmp_path / "run" / "events").glob("*.jsonl"))
    events = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert {"started", "step", "stopped", "best"} <= {event["event"] for event in events}
    names = {name for event in events for name in event}
    assert len(names) > 20
    assert not [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)]


def test_every_file_of_a_real_fit_is_documented(site, tmp_path):
    text = text_of(site, "reference/files")
    x = np.random.default_rng(0).normal(size=(5_000, 4)).astype(np.float32)
    lk.KMeans(8, n_init=2, random_state=0, checkpoint=str(tmp_path / "run")).fit(x)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"job.json", "events"} <= names
    assert not [name for name in sorted(names) if name not in text]
    for kind in lk.model.KINDS.values():
        for field in kind.holds.__dataclass_fields__:
            assert re.search(rf"\b{field}\b", text)


def links_of(site, page):
    """Where the links in the article of a page lead, from the site's folder."""
    found = re.findall(r'<a class="[^"]*" href="([^"#]*)', (site / f"{page}.html").read_text())
    folder = (site / page).parent
    return {
        (folder / link).resolve().relative_to(site.resolve()).as_posix()
        for link in found
        if link and "://" not in link
    }


def test_links_to_documents_lead_to_their_pages(site):
    assert {"made/design.html", "made/security.html", "migrating.html"} <= links_of(
        site, "made/readme"
    )
    assert "made/design.html" in links_of(site, "explanation/index")
    assert "results/index.html" in links_of(site, "made/design")


@pytest.fixture(scope="module")
def chromium():
    with browser.browser() as started:
        yield started


def test_search_works_from_files(site, chromium):
    with browser.page_of(chromium, 1280, "light") as (page, log):
        page.goto((site / "index.html").as_uri())
        page.fill("input[name=q]", "coreset")
        page.press("input[name=q]", "Enter")
        page.wait_for_selector("ul.search li a")
        found = page.eval_on_selector_all("ul.search li a", "all => all.map(a => a.href)")
        assert len(found) > 2
        assert any("reference/cli.html" in address for address in found)
        assert not browser.serious(page)
        page.click("ul.search li a")
        assert "coreset" in page.inner_text("article").lower()
        assert not log.messages
        assert not log.failed
        assert not log.beyond("file://")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_used_by_anybody(site, chromium, name, width, scheme):
    check_page(site, chromium, name, width, scheme)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_can_be_read_by_anybody(site, chromium, name):
    check_page(site, chromium, name, 390, "dark")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
@pytest.mark.parametrize("name", ["index", "reference/cli"])
def test_so_it_can_in_the_other_schemes(site, chromium, name, width, scheme):
    check_page(site, chromium, name, width, scheme)


def check_page(site, chromium, name, width, scheme):
    with browser.page_of(chromium, width, scheme) as (page, log):
        page.goto((site / f"{name}.html").as_uri())
        assert page.inner_text("h1")
        assert not browser.serious(page)
        assert not browser.scrolls_sideways(page)
        assert not log.messages
        assert not log.failed
        assert not log.beyond("file://")


def test_what_scrolls_is_reached_by_keyboard(site, chromium):
    with browser.page_of(chromium, 390, "light") as (page, _):
        page.goto((site / "start" / "cluster.html").as_uri())
        wide = "pre => [...pre].filter(p => p.scrollWidth > p.clientWidth).map(p => p.tabIndex)"
        reached = page.eval_on_selector_all("pre", wide)
        assert reached
        assert set(reached) == {0}


def test_every_panel_is_explained():
    text = (DOCS / "howto" / "watch.md").read_text()
    tree = ast.parse((ROOT / "largek_dask" / "plots" / "panels.py").read_text())
    titles = [
        node.args[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("_panel", "_plain", "make_panel")
    ]
    named = {title.value for title in titles if isinstance(title, ast.Constant)}
    assert len(named) >= 4
    # That of the cost is the name of the objective; a plain panel has the title it is given.
    assert len(titles) == len(named) + 2
    assert not [title for title in {*named, "Cost"} if f"| {title} |" not in text]
