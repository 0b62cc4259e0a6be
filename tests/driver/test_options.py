"""Every option of a fit is known to whoever takes options; what it says is said once."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from typing import Any

import click
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.cli.fit import fit as fit_command
from largek_dask.cli.jobs import submit as submit_command
from largek_dask.data.derived_rows import DitheredRows, StandardizedRows
from largek_dask.data.sources import open_rows
from largek_dask.driver import fit as fit_module
from largek_dask.driver.fit import fit
from largek_dask.driver.options import OPTIONS, FitOptions, Option
from largek_dask.driver.provenance import identity_of, parameters_of, stop_rules_of
from largek_dask.driver.stopping import StopRules
from largek_dask.errors import ParameterError
from largek_dask.service.spec import JobSpec
from tests.driver.toy import Toy, toy_rows
from tests.helpers.mixtures import PlainMixture

KMEANS_NAMES = {"seed": "random_state"}
"""What scikit-learn calls it."""
KMEANS_DEFAULTS = {"n_clusters": 8, "seed": None}
"""scikit-learn's."""
IN_THE_ALGORITHM = {"effort"}
"""Told as a parameter of the algorithm, by documents of jobs and by provenance."""
OTHERS: dict[str, Any] = {
    "n_clusters": 7, "algorithm": lk.NMBatch(rho=3.0), "effort": "best", "init": "random",
    "n_init": 2, "max_iter": 5, "tol": 0.25, "max_time": 9.0, "seed": 4, "empty_clusters": "keep",
    "on_bad_rows": "skip", "normalize": "l2", "scale": "standard", "memory_limit": 1234,
}  # fmt: skip
"""Another value of every option of k-means than its default."""
OF_MIXTURES: dict[str, Any] = {
    "mixture": "diag", "dither": "uniform", "weights_init": np.full(3, 1 / 3),
    "precisions_init": np.full((3, 3), 2.0),
}  # fmt: skip
"""The same of those that k-means does not have."""
ARRAYS = ("weights_init", "precisions_init")
"""Which no command line or document can hold."""
OF_TEXT = [name for name in OPTIONS if name not in ARRAYS]


@pytest.fixture
def of_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "vc-gmm", PlainMixture)


def words(text: str) -> str:
    return " ".join(text.split())


def parameters_in(docstring: str) -> dict[str, tuple[str, str]]:
    """Type and text of every parameter of a numpydoc docstring."""
    [section] = re.findall(r"Parameters\n-+\n(.*?)\n\n", docstring, re.DOTALL)
    entries = re.findall(r"^(\w+) : (.*)\n((?:    .*\n?)+)", section, re.MULTILINE)
    return {name: (kind, words(text)) for name, kind, text in entries}


def default_of(option: Option) -> Any:
    return inspect.Parameter.empty if option.is_required else option.default


def test_others_are_other_values_of_all_options() -> None:
    assert set(OTHERS | OF_MIXTURES) == set(OPTIONS)
    for name, option in OPTIONS.items():
        assert (name in OF_MIXTURES) == (option.part == "mixture")
        assert (name in ARRAYS) == (option.kind == "array")
        assert name in ARRAYS or (OTHERS | OF_MIXTURES)[name] != option.default
    # An effort is for an algorithm by its name.
    asked = OTHERS | {"algorithm": "auto"}
    found = dataclasses.asdict(FitOptions(**asked))
    assert {name: found[name] for name in OTHERS} == asked


@pytest.mark.parametrize("name", OTHERS)
def test_estimator(name: str) -> None:
    option, known_as = OPTIONS[name], KMEANS_NAMES.get(name, name)
    parameter = inspect.signature(lk.KMeans.__init__).parameters[known_as]
    assert parameter.default == KMEANS_DEFAULTS.get(name, default_of(option))
    kind, text = parameters_in(inspect.getdoc(lk.KMeans) or "")[known_as]
    assert text
    if option.choices:
        assert kind == "{" + ", ".join(json.dumps(c) if c else "None" for c in option.choices) + "}"


@pytest.mark.parametrize("name", OTHERS)
def test_estimator_passes_it_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[FitOptions] = []

    def heard(rows: Any, options: FitOptions, **_: Any) -> Any:
        found.append(options)
        raise StopIteration

    monkeypatch.setattr("largek_dask.estimators.base.fit", heard)
    km = lk.KMeans(**{KMEANS_NAMES.get(name, name): OTHERS[name]})
    with pytest.raises(StopIteration):
        km.fit(toy_rows(20, 3))
    assert getattr(found[0], name) == OTHERS[name]


@pytest.mark.usefixtures("of_mixture")
@pytest.mark.parametrize("name", OF_TEXT)
def test_document_of_a_job(name: str) -> None:
    option = OPTIONS[name]
    least = {"data": "/x.zarr", "output": "/run", "n_clusters": 3}
    if name in IN_THE_ALGORITHM:
        document = {"algorithm": {"name": "auto", "parameters": {name: OTHERS[name]}}}
        assert JobSpec.parse(least | document).fit_options().make_algorithm() == Auto("best")
        return
    field = JobSpec.model_fields[name]
    if name == "algorithm":
        document = {name: {"name": "nmbatch", "parameters": {"rho": 3.0}}}
        assert field.default.make() == FitOptions(n_clusters=1).make_algorithm()
    else:
        document = {name: (OTHERS | OF_MIXTURES)[name]}
        if name == "dither":
            document["mixture"] = "iso"
        assert field.is_required() == option.is_required
        assert option.is_required or field.default == option.default
        assert field.description == option.help
    expected = (OTHERS | OF_MIXTURES)[name]
    assert getattr(JobSpec.parse(least | document).fit_options(), name) == expected
    if option.least is not None:
        too_little = -1 if name == "memory_limit" else option.least - 1
        with pytest.raises(ParameterError, match=name):
            JobSpec.parse(least | {name: too_little})
    if option.choices:
        with pytest.raises(ParameterError, match=name):
            JobSpec.parse(least | {name: "another"})


@pytest.mark.parametrize("command", [fit_command, submit_command], ids=["fit", "submit"])
@pytest.mark.parametrize("name", OF_TEXT)
def test_command_line(name: str, command: click.Command) -> None:
    option = OPTIONS[name]
    [asked] = [found for found in command.params if found.name == name]
    assert isinstance(asked, click.Option)
    assert f"--{name.replace('_', '-')}" in asked.opts
    assert asked.help == option.help
    context = click.Context(command)
    if not option.is_required:
        assert asked.get_default(context) == option.default
    if isinstance(asked.type, click.Choice):
        assert list(asked.type.choices) == [choice for choice in option.choices if choice]
    else:
        assert not option.choices
    if option.kind in ("integer", "number"):
        assert asked.type.min == option.least  # type: ignore[attr-defined]
    assert option.help.split()[0] in command.get_help(context)


@pytest.mark.usefixtures("of_mixture")
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_written_about_a_fit(name: str) -> None:
    """Other values make another job, or other stop rules, or are not told at all."""
    of_mixture = {"algorithm": "auto", "mixture": "iso"}
    algorithm = {"algorithm": "auto" if name == "effort" else lk.Lloyd()}
    base = FitOptions(**{"n_clusters": 3, **(of_mixture if name in OF_MIXTURES else algorithm)})
    other = dataclasses.replace(base, **{name: (OTHERS | OF_MIXTURES)[name]})
    changed = {
        key
        for part in (identity_of, stop_rules_of)
        for key, value in part(other).items()
        if part(base).get(key) != value
    }
    told_as = {"job": {name}, "stop": {name}, "algorithm": {"algorithm"}, "means": set()}
    told_as["mixture"] = {name, "algorithm"} if name == "mixture" else {name}
    assert changed == told_as[OPTIONS[name].part]
    assert identity_of(base).keys().isdisjoint(stop_rules_of(base))


@pytest.mark.usefixtures("of_mixture")
@pytest.mark.parametrize("name", OPTIONS)
def test_a_fit_hears_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked reaches the passes, the starts, or the choice of an algorithm."""
    asked: dict[str, Any] = {"n_clusters": 3, "max_iter": 2, "algorithm": Toy(), "tol": 0.0}
    if name == "effort":
        asked["algorithm"] = "auto"
    asked[name] = (OTHERS | OF_MIXTURES)[name]
    if name in OF_MIXTURES:
        asked |= {"algorithm": "auto", "mixture": "diag"}
    passed: dict[str, Any] = {}
    open_passes = fit_module.open_passes

    def opened(rows: Any, **options: Any) -> Any:
        passed.update(options)
        passed["scale"] = "standard" if isinstance(rows, StandardizedRows) else None
        passed["dither"] = "uniform" if isinstance(rows, DitheredRows) else None
        return open_passes(rows, **options)

    class Starts(fit_module.Starts):
        def best(self, n_init: int, seconds: float) -> Any:
            problem: Any = self.algorithm.problem
            for part in (self, self.options.stop, problem):
                passed.update({f.name: getattr(part, f.name) for f in dataclasses.fields(part)})
            passed.update(n_init=n_init, seed=self.options.seed)
            return super().best(n_init, seconds)

    monkeypatch.setattr(fit_module, "open_passes", opened)
    monkeypatch.setattr(fit_module, "Starts", Starts)
    x = toy_rows(200, 3)
    fit(open_rows(x.astype(int) if name == "dither" else x), FitOptions(**asked), n_threads=1)
    if name == "effort":
        effort = FitOptions(n_clusters=3, effort="best").make_algorithm()
        assert effort == Auto("best")
    elif name == "algorithm":
        assert passed["algorithm"] == OTHERS[name]
    else:
        np.testing.assert_array_equal(passed[name], (OTHERS | OF_MIXTURES)[name])


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "auto"])
def test_a_problem_is_no_parameter(name: str) -> None:
    settings = ALGORITHMS[name]()
    bound = settings.bind(settings.solves(7))
    assert bound.problem.n_clusters == 7
    assert bound == settings
    assert not hasattr(settings, "problem")
    assert parameters_of(bound) == parameters_of(settings)
    assert "problem" not in parameters_of(bound)


def test_the_identity_is_what_it_was() -> None:
    """Folders that were written before the options were in one place are gone on with."""
    x = np.arange(36.0).reshape(12, 3)
    options: dict[str, Any] = {"n_clusters": 12, "seed": 7}
    others: dict[str, Any] = {
        "n_init": 2, "init": "random", "normalize": "l2", "on_bad_rows": "skip",
        "empty_clusters": "keep",
    }  # fmt: skip
    assert identity_of(FitOptions(algorithm="auto", effort="best", **options, **others)) == {
        "algorithm": {"name": "Auto", "effort": "best"}, **options, **others,
    }  # fmt: skip
    assert identity_of(FitOptions(algorithm=lk.NMBatch(rho=10.0), init=x, **options)) == {
        "algorithm": {
            "name": "NMBatch", "b0": "auto", "rho": 10.0, "stall": 0.5,
            "moves": True, "gather": "auto",
        },
        "n_clusters": 12,
        "init": {
            "shape": [12, 3], "dtype": "<f8",
            "sha256": "f266ad691ca02758868dc75135c67c1ec431ff2b86d9406ceef4a8d0a1365a57",
        },
        "n_init": 1, "seed": 7, "empty_clusters": "relocate", "normalize": None,
        "on_bad_rows": "raise",
    }  # fmt: skip


def test_values_are_given_in_one_unit() -> None:
    options = FitOptions(
        n_clusters=np.int64(3),  # type: ignore[arg-type]
        max_time="1h",
        memory_limit="1kB",
        init=[[1.0], [2.0], [3.0]],  # type: ignore[arg-type]
    )
    assert type(options.n_clusters) is int
    assert (options.max_time, options.memory_limit, options.memory_bytes) == (3600.0, 1000, 1000)
    assert options.stop == StopRules(300, 1e-4, 3600.0)
    assert isinstance(options.init, np.ndarray)
    again = dataclasses.replace(options, seed=3)
    assert (again.seed, again.max_time, again.memory_limit) == (3, 3600.0, 1000)
