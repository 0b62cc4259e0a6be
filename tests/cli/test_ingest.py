"""``largek ingest``."""

import json

import numpy as np
from click.testing import CliRunner

from largek_dask import open_rows
from largek_dask.cli import main


def run(*arguments, code=0):
    done = CliRunner().invoke(main, ["ingest", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_ingest__writes_what_was_asked_for(tmp_path):
    x = np.random.default_rng(0).standard_normal((1000, 3))
    x[7, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "x.zarr"
    options = ["--chunk-rows", 300, "--dtype", "float32", "--json"]
    told = json.loads(run(tmp_path / "x.npy", out, *options).stdout)
    assert told.pop("seconds") > 0
    assert told == {
        "out": str(out),
        "n_rows": 1000,
        "n_features": 3,
        "columns": None,
        "dtype": "float32",
        "bytes": 12_000,
        "n_chunks": open_rows(str(out)).n_chunks,
        "n_bad": 1,
    }
    np.testing.assert_array_equal(open_rows(str(out)).read(0)[:5], x[:5].astype(np.float32))


def test_ingest__shuffles_and_refuses_to_overwrite(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(2000.0).reshape(1000, 2))
    out = tmp_path / "x.zarr"
    shown = run(tmp_path / "x.npy", out, "--shuffle", 3)
    assert "largek fit" in shown.stdout
    first = np.concatenate(
        [open_rows(str(out)).read(i) for i in range(open_rows(str(out)).n_chunks)]
    )
    assert (first[:-1, 0] > first[1:, 0]).any()
    assert sorted(first[:, 0]) == list(np.arange(0, 2000.0, 2))
    assert str(out) in run(tmp_path / "x.npy", out, code=1).stderr
    run(tmp_path / "x.npy", out, "--force")
    assert open_rows(str(out)).read(0)[0, 0] == 0


def test_ingest__is_told_whether_the_first_line_is_a_header(tmp_path):
    (tmp_path / "x.csv").write_text("0,1\n0.5,1.5\n2.5,3.5\n")
    for option, n in [("--header", 2), ("--no-header", 3)]:
        out = tmp_path / f"{n}.zarr"
        CliRunner().invoke(main, ["ingest", option, str(tmp_path / "x.csv"), str(out)])
        assert open_rows(out).n_rows == n
