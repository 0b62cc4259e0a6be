"""A fit that is followed through its folder: states, odd events, storage that is away, commands."""

from __future__ import annotations

import json
from typing import Any

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.driver.event_log import JsonLines, Tail
from largek_dask.driver.storage import Folder
from largek_dask.errors import DataError
from largek_dask.service import fit_folder
from largek_dask.service.fit_folder import FitFolder, follow
from tests.service.web.sources import started, step

STOPPED = {"event": "stopped", "reason": "tol", "n_iter": 2, "cost": 1.0, "elapsed": 2.0}
FAILED = {"event": "failed", "run": 1, "error": "DataError", "message": "row 7 is not finite"}


def write(url: object, *events: dict[str, Any]) -> str:
    sink = JsonLines(Folder(str(url)))
    for event in events:
        sink(event)
    sink.close()
    return str(url)


def invoke(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def quick(monkeypatch):
    """What is done, one by one, instead of pausing between two reads."""
    pauses: list[Any] = []
    monkeypatch.setattr(fit_folder.time, "sleep", lambda _: pauses.pop(0)())
    return pauses


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_fit_as_it_grows(place, tmp_path):
    url = str(tmp_path / "run") if place == "local" else f"memory://grows/{tmp_path.name}/run"
    fit = FitFolder(Folder(url))
    with pytest.raises(DataError, match="holds no events"):
        fit.update()
    write(url, started(), step(1))
    assert [event["event"] for event in fit.update()] == ["started", "step"]
    assert (fit.view.state, fit.has_ended) == ("running", False)
    assert fit.update() == []
    write(url, step(2), STOPPED)
    fit.update()
    assert (fit.view.state, fit.has_ended) == ("finished", True)
    assert (fit.view.status["step"], fit.view.status["cost"]) == (2, 500.0)
    write(url, started(9.0), step(3))
    fit.update()
    assert (fit.view.state, fit.has_ended) == ("running", False)


def test_an_end_is_that_of_all_starts_and_of_the_job(tmp_path):
    run = {"event": "running", "run": 1}
    for n, (events, state) in enumerate((
        ([{**STOPPED, "reason": "interrupted"}], "cancelled"),
        ([{**STOPPED, "start": 0}], "running"),
        ([{**STOPPED, "start": 1}, {"event": "best", "reason": "tol"}], "finished"),
        ([run, STOPPED], "running"),
        ([run, STOPPED, {"event": "finished"}], "finished"),
        ([run, FAILED], "failed"),
    )):  # fmt: skip
        fit = FitFolder(Folder(write(tmp_path / str(n), started(), step(1), *events)))
        fit.update()
        assert fit.view.state == state


ODD = (
    '{"event": "started", "n_chunks": 1e999, "n_rows": NaN}',
    '{"event": "started"}',
    '{"event": "step", "cost": ' + "[" * 600 + "]" * 600 + "}",
    '{"event": "step", "seconds": {"compute": 1e999, "read": "a"}}',
    '{"event": ["a kind"], "format": 99}',
    '{"event": "a newer kind", "format": 99, "n_chunks": {}}',
    '{"event": "st',
    "nonsense",
)


def test_an_odd_line_hides_nothing_after_it(tmp_path):
    (tmp_path / "events").mkdir()
    for line in ODD:
        lines = [json.dumps(started()), line, json.dumps(step(1)), json.dumps(STOPPED)]
        (tmp_path / "events" / "000001.jsonl").write_text("\n".join([*lines, ""]))
        fit = FitFolder(Folder(str(tmp_path)))
        fit.update()
        assert (fit.view.state, fit.view.status["step"]) == ("finished", 1), line
        invoke("watch", tmp_path)


def unreadable_while(is_away, monkeypatch):
    listed = Folder._listed

    def at_times(folder):
        if is_away():
            raise OSError("away")
        return listed(folder)

    monkeypatch.setattr(Folder, "_listed", at_times)


def test_storage_that_is_away_is_waited_for(quick, tmp_path, monkeypatch, caplog):
    url = write(tmp_path, started(), step(1))
    away = []
    unreadable_while(lambda: away, monkeypatch)
    quick += [lambda: away.append(1), lambda: None, away.clear, lambda: write(url, STOPPED)]
    with dask.config.set({"largek.stores.patience-seconds": 60.0, "largek.stores.tries": 1}):
        found = [event and event["event"] for event in follow(FitFolder(Folder(url)))]
    assert found == ["started", "step", None, "stopped", None]
    (warning,) = caplog.messages
    assert url in warning
    assert "away" in warning


def test_storage_that_stays_away_is_given_up_in_the_end(quick, tmp_path, monkeypatch):
    url = write(tmp_path, started(), step(1))
    away = []
    unreadable_while(lambda: away, monkeypatch)
    quick += [lambda: away.append(1)]
    with (
        dask.config.set({"largek.stores.patience-seconds": 0.0, "largek.stores.tries": 1}),
        pytest.raises(OSError, match="away"),
    ):
        list(follow(FitFolder(Folder(url))))


def test_the_command_shows_a_fit_until_it_has_ended(quick, tmp_path):
    x = np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)
    url = str(tmp_path / "fit")
    lk.KMeans(4, algorithm=lk.Lloyd(), random_state=0, checkpoint=url).fit(x)
    assert "stopped" in invoke("watch", url).stdout
    fit = FitFolder(Folder(url))
    fit.update()
    status = fit.view.status
    assert (status["n_clusters"], status["algorithm"]) == (4, "Lloyd")
    assert status["data"] == "rows in memory"
    url = write(tmp_path / "grows", started())
    quick += [lambda: write(url, step(1)), lambda: write(url, STOPPED)]
    told = [json.loads(line) for line in invoke("watch", url, "--json").stdout.splitlines()]
    assert [event["event"] for event in told] == ["started", "step", "stopped"]
    assert quick == []


def test_the_command_ends_as_the_fit_does(tmp_path):
    for name, event, code in (("a", {**STOPPED, "reason": "cancelled"}, 3), ("b", FAILED, 1)):
        done = invoke("watch", write(tmp_path / name, started(), event), code=code)
    assert "row 7 is not finite" in done.stderr
    assert "holds no events" in invoke("watch", tmp_path / "none", code=1).stderr
    done = invoke("watch", "lk-0123456789", code=2)
    assert "--scheduler" in done.stderr


def test_tail__broken_lines_and_parts(tmp_path):
    tail = Tail(Folder(str(tmp_path)))
    with pytest.raises(FileNotFoundError):
        list(tail.new())
    (tmp_path / "events").mkdir()
    first = tmp_path / "events" / "000001.jsonl"
    first.write_text('{"event": "a"}\n{"event": "b"')
    assert [event["event"] for event in tail.new()] == ["a"]
    with open(first, "a") as file:
        file.write('}\nnonsense\n[1]\n{"event": "c"}\n')
    assert [event["event"] for event in tail.new()] == ["b", "c"]
    (tmp_path / "events" / "000002.jsonl").write_text('{"event": "d"}\n{"cut')
    (tmp_path / "events" / "000003.jsonl").write_text('{"event": "e"}\n')
    assert [event["event"] for event in tail.new()] == ["d", "e"]
    assert list(tail.new()) == []
