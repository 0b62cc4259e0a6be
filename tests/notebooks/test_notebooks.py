"""The notebooks run as they are, from the first cell to the last, without a warning.

Each is executed once. Where ``LARGEK_EXECUTED`` names a folder, the executed copies are left there:
the documentation site shows these.
"""

import json
import os
from pathlib import Path

import nbclient
import nbformat
import nbstripout
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
SECONDS = 120
"""Limit of a cell, on two cores with an empty kernel cache; warm, a notebook needs a quarter."""
MOST_BYTES = 250_000
"""Limit of one output: notebooks are looked at on slow lines, too."""


def test_there_are_six():
    assert NAMES == [
        "01_codebook",
        "02_single_cell",
        "03_words",
        "04_how_many",
        "05_eighty_million",
        "06_texts",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_is_kept_without_outputs(path):
    text = path.read_text()
    book = nbformat.reads(text, 4)
    stripped = nbstripout.strip_output(
        nbformat.reads(text, 4), keep_output=False, keep_count=False, keep_id=True
    )
    assert stripped == book
    assert all(cell["outputs"] == [] for cell in book.cells if cell.cell_type == "code")
    assert json.dumps(book.metadata) == json.dumps(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_says_what_one_gets_and_shows_it(path, executed):
    book = executed(path)
    first, second = book.cells[:2]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "result" in first.source
    shown = [output["data"] for output in second.outputs if "data" in output]
    assert any(
        {"image/png", "image/jpeg"} & set(data) or "<img" in data.get("text/html", "")
        for data in shown
    )
    source = "\n".join(cell.source for cell in book.cells)
    # As on a real cluster: jobs that a scheduler keeps.
    assert "JobsPlugin(" in source
    assert "service.submit(" in source
    assert "ipywidgets" not in source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_outputs_are_small_and_nothing_is_complained_of(path, executed):
    outputs = [output for cell in executed(path).cells for output in cell.get("outputs", ())]
    assert len(outputs) > 3
    assert max(len(json.dumps(output)) for output in outputs) <= MOST_BYTES
    complaints = "".join(o["text"] for o in outputs if o.get("name") == "stderr").splitlines()
    # Other tests may not have compiled all of it.
    expected = "largek_dask: compiling kernels, once on this machine"
    assert [line for line in complaints if not line.startswith(expected)] == []


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """An executed copy of a notebook; each is executed once."""
    done = {}

    def get(path):
        if path not in done:
            book = nbformat.read(path, 4)
            folder = tmp_path_factory.mktemp(path.stem)
            client = nbclient.NotebookClient(
                book, timeout=SECONDS, kernel_name="python3",
                resources={"metadata": {"path": str(folder)}},
            )  # fmt: skip
            client.execute(env=quiet_environment())
            if "LARGEK_EXECUTED" in os.environ:
                kept = Path(os.environ["LARGEK_EXECUTED"])
                kept.mkdir(parents=True, exist_ok=True)
                nbformat.write(book, kept / path.name)
            done[path] = book
        return done[path]

    return get


def quiet_environment():
    """This process's, with warnings as errors in the notebook and in the workers it starts.

    Copies for the site show all texts, other runs a part of them.
    """
    most_texts = {} if "LARGEK_EXECUTED" in os.environ else {"MOST_TEXTS": "6000"}
    warnings = {"PYTHONWARNINGS": "error,ignore:Creating scratch directories"}
    return {**os.environ, **most_texts, **warnings}
