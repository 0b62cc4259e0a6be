"""The job document: what is refused, by which name, and what is never written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.driver.options import FitOptions
from largek_dask.errors import ParameterError
from largek_dask.service.spec import MOST_BYTES, AlgorithmSpec, JobSpec, StorageOption, hide

LEAST = {"data": "s3://bucket/x.zarr", "output": "/runs/1", "n_clusters": 10}


def job(**more):
    return JobSpec.parse(LEAST | more)


def test_what_the_least_job_asks_for_are_the_defaults():
    assert job().algorithm.make() == Auto()
    assert job().fit_options() == FitOptions(n_clusters=10, algorithm=Auto())


def test_a_document_of_before_is_read_and_asks_for_the_same():
    """As version 0.1 wrote it before the options of a fit were in one place."""
    document = {
        "format": 1, "data": "s3://bucket/x.zarr", "output": "/runs/1", "n_clusters": 10,
        "algorithm": {"name": "auto", "parameters": {"effort": "best"}}, "init": "auto",
        "n_init": 1, "max_iter": 300, "tol": 0.0001, "max_time": 60.0, "seed": 0,
        "sample_weight": None, "empty_clusters": "relocate", "on_bad_rows": "raise",
        "normalize": None, "labels": True, "memory_limit": 0, "name": None,
        "storage_options": {},
    }  # fmt: skip
    spec = JobSpec.parse(json.dumps(document))
    assert spec.dump().items() >= (document | {"format": 2}).items()
    named = JobSpec.parse(document | {"algorithm": {"name": "dcdbundle"}})
    assert named.algorithm.make() == lk.PartitionPath()
    for number in (1, 2):
        for name, made in (("nmbatch", lk.NMBatch()), ("lloyd", lk.Lloyd())):
            algorithm = {"name": name, "parameters": {"bounds": "elkan"}}
            former = JobSpec.parse(document | {"format": number, "algorithm": algorithm})
            assert former.algorithm.make() == made
    for wrong in (3, {"name": 3}, {"name": "vrkm", "parameters": 3}, {"parameters": {}, "more": 1}):
        with pytest.raises(ParameterError, match="invalid job: algorithm"):
            JobSpec.parse(document | {"algorithm": wrong})
    expected = FitOptions(n_clusters=10, algorithm=Auto("best"), max_time=60.0, memory_limit=1)
    assert spec.fit_options() == expected


def test_algorithms_are_those_of_the_registry(monkeypatch):
    class New(Auto):
        pass

    assert "new" not in ALGORITHMS
    with pytest.raises(
        ParameterError, match=r"algorithm.name: is not one of auto, dcd-bundle, inc"
    ):
        job(algorithm={"name": "new"})
    monkeypatch.setitem(ALGORITHMS, "new", New)
    spec = job(algorithm=AlgorithmSpec.of(New("fast")).model_dump())
    assert spec.algorithm.model_dump() == {"name": "new", "parameters": {"effort": "fast"}}
    assert spec.algorithm.make() == New("fast")


def test_a_document_comes_back_as_it_went():
    spec = job(
        algorithm={"name": "nmbatch", "parameters": {"rho": 10.0, "stall": 0.0}},
        init="random",
        max_time=3600,
        name="Größe 1",
        storage_options={"key": {"env": "AWS_KEY"}, "secret": {"memory": True}},
    )
    text = json.dumps(spec.dump())
    assert JobSpec.parse(text) == JobSpec.parse(text.encode()) == spec
    assert spec.in_memory == ("secret",)
    assert spec.algorithm.make() == lk.NMBatch(rho=10.0, stall=0.0)


WRONG = (
    ({"n_cluster": 3}, "n_cluster: is not"),
    ({"format": 3}, "format"),
    ({"n_clusters": 0}, "n_clusters: must be greater than or equal to 1"),
    ({"n_clusters": 10**9}, "n_clusters"),
    ({"n_clusters": True}, "n_clusters"),
    ({"n_clusters": "10"}, "n_clusters: must be a valid integer"),
    ({"n_clusters": 10.0}, "n_clusters"),
    ({"tol": -1.0}, "tol"),
    ({"tol": "a"}, "tol: must be a valid number"),
    ({"tol": float("nan")}, "tol: must be a finite number"),
    ({"max_time": 0}, "max_time: must be greater than 0"),
    ({"seed": 1 << 63}, "seed: must be less than"),
    ({"labels": 1}, "labels: must be a valid boolean"),
    ({"normalize": "l1"}, "normalize: must be 'l2'"),
    ({"mixture": "full"}, "mixture: must be 'iso', 'isoflex' or 'diag'"),
    ({"data": 3}, "data: must be a valid string"),
    ({"data": "x.zarr"}, "data: .*relative path"),
    ({"output": "file://run1"}, "output: .*relative"),
    ({"data": "s3://bucket/../x"}, r"data: .*'\.\.'"),
    ({"output": "/runs/../../etc"}, r"output: .*'\.\.'"),
    ({"output": "/runs/1\nfake line"}, "output: .*control characters"),
    ({"output": ""}, "output: .* at least 1 character"),
    ({"output": "/" + "a" * 5_000}, "output"),
    ({"name": "a\nb"}, "name: .*control characters"),
    ({"name": " a"}, "name: .*blanks"),
    ({"name": "a" * 201}, "name: .* at most 200 characters"),
    ({"algorithm": "lloyd"}, "algorithm: must be .*AlgorithmSpec"),
    ({"algorithm": {"name": "os.system"}}, "algorithm.name"),
    ({"algorithm": {"name": "lloyd", "parameters": {"b0": 3}}}, "algorithm: .*b0"),
    ({"algorithm": {"name": "nmbatch", "parameters": {"rho": -1}}}, "algorithm: .*rho"),
    ({"algorithm": {"name": "nmbatch", "parameters": {"rho": [1]}}}, "algorithm.parameters.rho: "),
    ({"algorithm": {"name": "lloyd", "parameters": {"problem": None}}}, "algorithm: .*problem"),
    ({"storage_options": {"key": "AKIA123"}}, "storage_options.key"),
    ({"storage_options": {"key": {"env": "A B"}}}, "storage_options.key.env"),
    ({"storage_options": {"key": {}}}, "storage_options.key"),
    ({"storage_options": {"key": {"env": "A", "memory": True}}}, "storage_options.key"),
)


def test_what_is_wrong_is_named():
    for wrong, named in WRONG:
        with pytest.raises(ParameterError, match=named):
            job(**wrong)


def test_every_wrong_field_is_named_and_no_value_is_repeated():
    with pytest.raises(ParameterError) as caught:
        job(n_clusters=-7777, storage_options={"key": "AKIA123"}, **{"x\ny": 1})
    text = str(caught.value)
    assert "n_clusters" in text
    assert "storage_options.key" in text
    assert "AKIA123" not in text
    assert "7777" not in text
    assert "\n" not in text


def test_what_is_no_document_is_refused():
    for document, why in (
        (b"{", "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\xff", "must be JSON"),
        (b'{"data": "/a", "data": "/b"}', "given twice"),
        (b" " * MOST_BYTES, "must be JSON"),
        (b" " * (MOST_BYTES + 1), f"at most {MOST_BYTES:,}"),
    ):
        with pytest.raises(ParameterError, match=why):
            JobSpec.parse(document)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(JobSpec.model_fields)), junk)
def test_any_value_of_any_field_is_taken_or_refused(field, value):
    refused = None
    try:
        spec = job(**{field: value})
    except ParameterError as error:
        refused = str(error)
    if refused is None:
        assert JobSpec.parse(json.dumps(spec.dump())) == spec
    else:
        assert field in refused
        assert "\n" not in refused


def test_algorithm_objects_become_documents():
    for algorithm in (
        lk.Lloyd(),
        lk.NMBatch.paper(),
        lk.MiniBatch(votes="latest"),
        lk.IncrementalLloyd(rounds=5, smoothing=1.0),
    ):
        spec = job(algorithm=AlgorithmSpec.of(algorithm).model_dump())
        assert spec.algorithm.make() == algorithm
    for wrong in (object(), lk.Lloyd, "best", None):
        with pytest.raises(ParameterError):
            AlgorithmSpec.of(wrong)


def test_values_of_storage_options_stay_out_of_the_document():
    options = {"key": {"env": "AWS_KEY"}, "secret": "hunter2", "client_kwargs": {"env": 1, "b": 2}}
    public, secret = hide(options)
    assert secret == {"secret": "hunter2", "client_kwargs": {"env": 1, "b": 2}}
    spec = job(storage_options=public)
    assert spec.storage_options["key"] == StorageOption(env="AWS_KEY")
    assert set(spec.in_memory) == {"secret", "client_kwargs"}
    assert "hunter2" not in json.dumps(spec.dump())
    assert hide(None) == ({}, {})


def test_all_that_is_missing_is_named():
    with pytest.raises(ParameterError, match=r"data: Field required; output: Field required; n_c"):
        JobSpec.parse({})
