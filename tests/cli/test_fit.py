"""``largek fit`` and what works on its folder: predict, score, plot."""

import json

import numpy as np
import pytest
import zarr

from largek_dask import KMeans, Lloyd, Truncated, ingest, load_model, open_rows
from largek_dask.driver.options import FitOptions
from largek_dask.driver.storage import Folder
from largek_dask.errors import MissingChunksWarning
from largek_dask.service.store import JOB_FILES
from tests.helpers.commands import run, run_json

pytestmark = pytest.mark.usefixtures("chunks_as_stored")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A Zarr store of 600 rows without any structure, which takes Lloyd many steps."""
    x = np.random.default_rng(0).standard_normal((600, 4)).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    zarr.create_array(str(path), data=x, chunks=(150, 4))
    assert open_rows(str(path)).n_chunks == 4
    return str(path), x


def labels_in(folder):
    return zarr.open_array(str(folder / "labels.zarr"), mode="r")[...]


# --- fit ----------------------------------------------------------------------------------------


def test_fit__writes_everything_and_says_what_kmeans_says(data, tmp_path):
    url, _ = data
    options = ["--seed", 3, "--tol", 0, "--algorithm", "lloyd"]
    told = run_json("fit", url, "-k", 5, "--out", tmp_path / "run", *options)
    km = KMeans(5, algorithm="lloyd", random_state=3, tol=0).fit(url)
    assert told["digest"] == km.model_.digest()
    assert told["inertia"] == km.inertia_
    assert told["stop_reason"] == "converged"
    assert (told["n_rows"], told["n_features"], told["n_clusters"]) == (600, 4, 5)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"job.json", "events", "checkpoints", "model.zarr", "labels.zarr"}
    np.testing.assert_array_equal(labels_in(tmp_path / "run"), km.labels_)
    assert load_model(told["model"]).digest() == told["digest"]


def test_fit__options_reach_the_fit(data, tmp_path):
    url, _ = data
    weights = tmp_path / "w.npy"
    np.save(weights, np.arange(600.0))
    options = ["--init", "k-means++", "--n-init", 2, "--max-iter", 2, "--normalize", "l2"]
    options += ["--sample-weight", weights, "--on-bad-rows", "skip", "--threads", 1]
    options += ["--empty-clusters", "keep", "--effort", "fast", "--memory-limit", "1MiB"]
    told = run_json("fit", url, "-k", 4, "--out", tmp_path / "run", "--no-labels", *options)
    km = KMeans(4, init="k-means++", n_init=2, max_iter=2, normalize="l2", random_state=0)
    km.set_params(on_bad_rows="skip", empty_clusters="keep", effort="fast", memory_limit="1MiB")
    km.fit(url, sample_weight=np.arange(600.0))
    assert told["digest"] == km.model_.digest()
    assert told["labels"] is None
    assert not (tmp_path / "run" / "labels.zarr").exists()
    model = load_model(told["model"])
    assert (model.normalize, model.on_bad_rows) == ("l2", "skip")
    assert model.provenance["parameters"] == km.model_.provenance["parameters"]
    assert model.provenance["parameters"]["empty_clusters"] == "keep"
    assert model.provenance["parameters"]["algorithm"] == {"name": "Auto", "effort": "fast"}


def test_fit__same_job_resumes(data, tmp_path):
    url, _ = data
    out = tmp_path / "run"
    base = ["fit", url, "-k", 5, "--out", out, "--tol", 0]
    short = run_json(*base, "--max-iter", 2)
    assert short["n_iter"] == 2
    assert short["stop_reason"] == "max_iter"
    whole = run_json(*base)
    assert whole["n_iter"] > 2
    assert whole["stop_reason"] == "converged"
    fresh = run_json("fit", url, "-k", 5, "--out", tmp_path / "fresh", "--tol", 0)
    assert whole["digest"] == fresh["digest"]
    # model and labels are those of the longer fit
    assert load_model(whole["model"]).digest() == whole["digest"]
    np.testing.assert_array_equal(labels_in(out), labels_in(tmp_path / "fresh"))
    # a third run finds all of it done, and leaves the labels alone
    before = sorted(p.stat().st_mtime_ns for p in (out / "labels.zarr").rglob("*"))
    assert run_json(*base)["digest"] == whole["digest"]
    assert sorted(p.stat().st_mtime_ns for p in (out / "labels.zarr").rglob("*")) == before


def test_fit__another_job_is_refused_unless_forced(data, tmp_path):
    url, _ = data
    out = tmp_path / "run"
    run("fit", url, "-k", 3, "--out", out)
    done = run("fit", url, "-k", 4, "--out", out, code=1)
    assert "contains another job: its n_clusters is 3, not 4" in done.stderr
    assert load_model(str(out / "model.zarr")).n_clusters == 3
    assert run_json("fit", url, "-k", 4, "--out", out, "--force")["n_clusters"] == 4
    assert load_model(str(out / "model.zarr")).n_clusters == 4


def test_fit__folder_with_other_things_is_refused_and_never_emptied(data, tmp_path):
    url, _ = data
    (tmp_path / "mine.txt").write_text("mine")
    done = run("fit", url, "-k", 3, "--out", tmp_path, code=1)
    assert "'mine.txt'" in done.stderr
    run("fit", url, "-k", 3, "--out", tmp_path, "--force")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_fit__interrupted_gives_code_3_and_resumes(data, tmp_path, monkeypatch):
    url, _ = data
    how = ["--tol", 0, "--algorithm", "lloyd"]
    base = ["fit", url, "-k", 5, "--out", tmp_path / "run", *how]
    steps = []

    def interrupted_step(self, passes, rng, state, step=Lloyd.step):
        steps.append(state.step)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return step(self, passes, rng, state)

    with monkeypatch.context() as patch:
        patch.setattr(Lloyd, "step", interrupted_step)
        done = run(*base, "--json", code=3)
    assert json.loads(done.stdout)["stop_reason"] == "interrupted"
    assert done.stderr.endswith("Cancelled.\n")
    resumed = run_json(*base)
    fresh = run_json("fit", url, "-k", 5, "--out", tmp_path / "fresh", *how)
    assert resumed["digest"] == fresh["digest"]
    np.testing.assert_array_equal(labels_in(tmp_path / "run"), labels_in(tmp_path / "fresh"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-k", 601], 1, "n_clusters=601 is more than the number of rows"),
        (["-k", 0], 2, "0 is not in the range x>=1"),
        (
            ["-k", 3, "--algorithm", "magic"],
            2,
            "algorithm must be one of 'auto', 'dcd-bundle', 'incremental', 'lloyd'",
        ),
        (["-k", 3, "--set", "batch_rows"], 2, "'batch_rows' is not valid: use name=value"),
        (
            ["-k", 3, "--set", "batch_rows=9"],
            2,
            "Auto has no parameter 'batch_rows'; valid parameters: effort",
        ),
        (
            ["-k", 3, "--algorithm", "minibatch", "--set", "rows=9"],
            2,
            "MiniBatch has no parameter 'rows'; valid parameters: batch_rows",
        ),
        (["-k", 3, "--init", "best"], 1, "'best'"),
        (["-k", 3, "--memory-limit", "much"], 1, "memory_limit must be bytes or a text such as"),
        (["-k", 3, "--empty-clusters", "drop"], 2, "'drop' is not one of 'relocate', 'keep'"),
        (["-k", 3, "--max-time", "soon"], 1, "max_time must be seconds or a text such as '90s'"),
        (["-k", 3, "--sample-weight", "/no/such.npy"], 1, "/no/such.npy"),
        (["-k", 3, "--scheduler", "nonsense://x"], 1, "no Dask scheduler answers at"),
    ],
)
def test_fit__wrong_options(data, tmp_path, options, code, message):
    done = run("fit", data[0], "--out", tmp_path / "run", *options, code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# --- plan ---------------------------------------------------------------------------------------


def test_plan__computes_nothing(data, tmp_path, monkeypatch):
    url, _ = data
    monkeypatch.chdir(tmp_path)
    options = ["--max-iter", 7, "--threads", 2, "--algorithm", "lloyd"]
    told = run_json("fit", url, "-k", 50, "--plan", *options)
    assert told["fits"]
    assert (told["n_rows"], told["n_clusters"], told["n_threads"]) == (600, 50, 2)
    # one scan, k-means++ with a pass a centre, then at most 7 steps and the last pass
    assert told["passes_before"] == 51
    assert told["passes_most"] == 59
    assert told["memory"] > 0
    assert told["seconds_pass"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "a_row", "once", "readings"),
    [
        ((), 4, 0, 1),
        (("--algorithm", "nmbatch"), 12, 4, 1),
        (("--algorithm", "minibatch"), 4, 4, 1),
        (("--algorithm", "incremental"), 12, 8, 10),
        (("--algorithm", "vrkm"), 16, 12, 101),
    ],
)
def test_plan__80_million_rows_of_row_state_fit(options, a_row, once, readings, monkeypatch):
    from largek_dask.cli.options import choose_algorithm
    from largek_dask.cli.plan import machines_of, make_plan
    from largek_dask.data.memory_rows import ArrayRows

    rows = ArrayRows(np.broadcast_to(np.zeros(32, np.float32), (80_000_000, 32)))
    monkeypatch.setattr("largek_dask.cli.plan.read_rate", lambda rows: 1e9)
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", 64 << 30)
    name = options[1] if options else "lloyd"
    chosen = choose_algorithm({"algorithm": name, "settings": options[3:]})
    asked = FitOptions(n_clusters=1000, algorithm=chosen, init="random")
    plan = make_plan(rows, asked, machines_of(2, None))
    assert 80_000_000 * a_row <= 8e9
    # What no pass changes is kept once, all else twice while a pass is under way.
    assert plan["memory_row_state"] == 80_000_000 * (2 * a_row - once)
    assert plan["row_bytes"] == a_row
    assert plan["row_state"] == plan["memory_row_state"]
    # Of 10 GB half a gigabyte stays in memory; every round of an epoch reads the rest.
    read = readings * (1 - (512 << 20) / rows.nbytes)
    assert plan["steps_per_reading"] == pytest.approx(1 / read)
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", 1 << 30)
    plan = make_plan(rows, asked, machines_of(2, None))
    assert plan["memory_row_state"] == 1 << 28


def test_plan__samples_that_the_driver_holds(tmp_path, monkeypatch):
    """Those that a search draws from a store."""
    from largek_dask.cli.plan import machines_of, make_plan
    from largek_dask.passes import subset

    n, d, k = 60_000, 4, 150
    x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    ingest(x, str(tmp_path / "rows.zarr"), chunk_rows=8_000, progress=False)
    drawn, draw = {}, subset._draw

    def drawing(of, asked):
        found = draw(of, asked)
        assert found.x is not None, "rows are read"
        drawn[asked.purpose] = len(found.rows)
        return found

    monkeypatch.setattr(subset, "_draw", drawing)
    rows = open_rows(str(tmp_path / "rows.zarr"))
    KMeans(k, algorithm=Truncated(), max_iter=90, random_state=0).fit(rows)
    assert drawn.keys() == {"start", "split"}
    asked = FitOptions(n_clusters=k, algorithm=Truncated())
    plan = make_plan(rows, asked, machines_of(2, None))
    # Of the first there are two while it is read, and its state; each has numbers and weights.
    copies = 2 * drawn["start"] + drawn["split"]
    beside = 16 * sum(drawn.values()) + 32 * drawn["start"]
    assert plan["memory_held"] == copies * d * 4 + beside
    assert make_plan(open_rows(x), asked, machines_of(2, None))["memory_held"] == 0


def test_plan__of_rows_that_are_still_to_be_written(tmp_path):
    url = tmp_path / "x.zarr"
    zarr.create_array(url, shape=(4_000, 6), chunks=(1_000, 6), dtype="f4")
    with pytest.warns(MissingChunksWarning):
        open_rows(url)
    # A warning would be an error here.
    assert run_json("fit", url, "-k", 5, "--plan")["n_rows"] == 4_000


# --- predict, score -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("fitted") / "run"
    return out, run_json("fit", data[0], "-k", 5, "--out", out)


def test_predict__writes_labels_and_refuses_to_overwrite(data, fitted, tmp_path):
    out, told = fitted
    target = tmp_path / "labels.zarr"
    assert run_json("predict", told["model"], data[0], "--out", target)["n_rows"] == 600
    np.testing.assert_array_equal(zarr.open_array(str(target), mode="r")[...], labels_in(out))
    done = run("predict", told["model"], data[0], "--out", target, code=1)
    assert "already exists" in done.stderr


def test_not_a_model(data, tmp_path):
    done = run("score", data[0], data[0], code=1)
    assert "is a Zarr store, but not a model" in done.stderr


# --- charts -------------------------------------------------------------------------------------


def test_charts__a_job(fitted, tmp_path, monkeypatch):
    out, _ = fitted
    monkeypatch.chdir(tmp_path)
    shown = run_json("report", out, "--out", "run.png")
    assert shown == {"out": "run.png"}
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "run.png exists" in run("report", out, "--out", "run.png", code=1).stderr
    assert "run.png" in run("report", out, "--out", "run.png", "--force").stdout
    assert "No such file" in run("report", out, "--out", "no/such/x.png", code=1).stderr
    run("report", out, "--out", "x.svg")
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_job_files_are_all_that_a_job_writes(data, tmp_path):
    """``--force`` must know every name, or a forced job would meet another's leftovers."""
    out = tmp_path / "run"
    run("fit", data[0], "-k", 5, "--out", out, "--n-init", 2, "--max-iter", 2)
    assert set(Folder(str(out)).names()) <= set(JOB_FILES)
