"""Descriptions of algorithms as commit 9a8d809 stored them, and what these are called now."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.lloyd import LloydState
from largek_dask.algorithms.nmbatch import NMBatchState
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.starts.coresets import Coreset
from largek_dask.driver.checkpoint import encode
from largek_dask.driver.former_names import current_description, current_state
from largek_dask.driver.provenance import parameters_of

NESTED = {"name": "NMBatch", "b0": 5000, "rho": 100.0, "stall": 0.5, "start": "sample",
          "moves": True, "gather": "auto", "bounds": True}  # fmt: skip
MIXTURE = {"name": "VCGMM", "candidates": "auto", "neighbours": "auto", "explore": 0,
           "covariance": "iso", "initial_e_steps": 0, "coreset": None, "reg_covar": 1e-6,
           "least_variance": 0.0, "relative_eps": None, "moves": True,
           "published": False}  # fmt: skip
DCCLUST = {"name": "DCClust", "descent": "plain", "gamma_1": 0.7, "gamma_2": 0.7, "apart": 0.2,
           "starts": "all", "drawn": 1000, "most": None, "auxiliary_tolerance": 1e-6,
           "accuracy": {"name": "Accuracy", "tolerance": 1e-9, "descent": 1e-4, "null": 0.25,
                        "distance": 0.5, "corrections": 7, "lowest": 1e-10, "highest": 1e10,
                        "escape": 1e-4, "most": 20_000}}  # fmt: skip
OF_THE_PAPER = {"published": True, "relative_eps": 1e-4}


@pytest.mark.parametrize(
    ("former", "now"),
    [
        (NESTED, lk.NMBatch(b0=5000, rho=100.0)),
        (NESTED | {"stall": 0.0, "start": "random", "moves": False}, lk.NMBatch.paper()),
        (MIXTURE, lk.VCGMM()),
        (MIXTURE | OF_THE_PAPER, lk.VCGMM.paper(coreset=None)),
        (MIXTURE | OF_THE_PAPER | {"coreset": 1200}, lk.VCGMM.paper(coreset=1200)),
        ({"name": "Lloyd", "bounds": "auto"}, lk.Lloyd()),
        ({"name": "Lloyd", "bounds": "hamerly"}, lk.Lloyd()),
        ({"name": "DCDBundle", "effort": "fast", "metric": "lloyd"}, lk.PartitionPath("fast")),
        (DCCLUST, lk.DCDBundle(descent="plain")),
        ({"name": "Elsewhere", "of": 3}, None),
    ],
)
def test_a_description_of_9a8d809_is_of_what_it_is_now(former, now):
    assert current_description(former) == (former if now is None else parameters_of(now))


@pytest.mark.parametrize("name", ["NMBatch", "Lloyd"])
def test_bounds_of_format_2_make_no_other_job(name):
    algorithm = getattr(lk, name)()
    former = parameters_of(algorithm) | {"bounds": "groups"}
    assert current_description(former, 2) == parameters_of(algorithm)


CENTERS = np.eye(3)


@pytest.mark.parametrize(
    "state",
    [
        NMBatchState(CENTERS, np.ones(3), np.zeros(3), 100, history=History(4, (CENTERS,))),
        LloydState(CENTERS, np.ones(3), np.zeros(3), History(4, (CENTERS,))),
    ],
)
def test_states_that_had_bounds(state):
    tree = encode(state, {})
    former = encode(state, {})
    passes = former["fields"]["history"]["fields"]["entries"]
    passes["tuple"] = [
        {"class": "Assignment", "fields": {"centers": entry, "bounds": None}}
        for entry in passes["tuple"]
    ]
    former["fields"]["bounds"] = None
    assert current_state(former) == tree
    assert current_state(tree) == tree


def test_a_coreset_had_probabilities_that_others_lack_its_rows():
    coreset = Coreset(np.arange(3), np.ones(3), 9)
    tree = encode(coreset, {})
    for name in ("VCGMMState", "EMState"):
        state = {"class": name, "fields": {"coreset": tree}}
        former = {"class": name, "fields": {"coreset": encode(coreset, {})}}
        former["fields"]["coreset"]["fields"] |= {"missing": {"array": "x"}, "n_draws": 4}
        assert current_state(former) == state == current_state(state)


def test_a_sample_of_a_path_was_a_tuple():
    arrays: dict[str, np.ndarray] = {}
    rows, factors = np.arange(3), np.full(3, 2.0)
    former = {
        "class": "SearchState",
        "fields": {"sample": encode((rows, factors), arrays), "step": 4},
    }
    state = {
        "class": "SearchState",
        "fields": {"sample": encode(Coreset(rows, factors), {}), "step": 4},
    }
    assert current_state(former) == state == current_state(state)
