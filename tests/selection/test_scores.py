"""Scores of labels beside known classes: definitions by brute force, scikit-learn's values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

import largek_dask as lk
from largek_dask.errors import NotEnoughMemoryError, ParameterError, ParameterWarning
from largek_dask.selection.scores import accuracy, ari, nmi, purity

SCORES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "nmi": nmi,
    "ari": ari,
    "purity": purity,
}
every_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)

Pair = tuple[NDArray[np.int64], NDArray[np.int64]]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Labels and classes of 1 to 40 rows, with up to 6 of each."""
    n = draw(st.integers(1, 40))
    lists = (
        draw(st.lists(st.integers(0, draw(st.integers(0, 5))), min_size=n, max_size=n))
        for _ in range(2)
    )
    labels, truth = (np.array(numbers) for numbers in lists)
    return labels, truth


def numbers_of(pair: Pair) -> tuple[int, int]:
    return len(np.unique(pair[0])), len(np.unique(pair[1]))


def best_of_all_matchings(labels: NDArray[Any], truth: NDArray[Any]) -> float:
    """The accuracy by its definition: every matching of clusters and classes is tried."""
    few, many = (np.unique(labels), labels), (np.unique(truth), truth)
    if len(few[0]) > len(many[0]):
        few, many = many, few
    return max(
        sum(
            np.count_nonzero((few[1] == a) & (many[1] == b))
            for a, b in zip(few[0], chosen, strict=True)
        )
        for chosen in permutations(many[0], len(few[0]))
    ) / len(labels)


def by_definition(labels: NDArray[Any], truth: NDArray[Any]) -> float:
    """Σ over clusters of the rows of their most frequent class, over all rows."""
    found = [truth[labels == cluster] for cluster in np.unique(labels)]
    return sum(max(np.count_nonzero(own == c) for c in own) for own in found) / len(labels)


@settings(deadline=None)
@given(pairs())
def test_accuracy_is_that_of_the_best_of_all_matchings(pair: Pair) -> None:
    assert accuracy(*pair) == pytest.approx(best_of_all_matchings(*pair), abs=1e-15)


@settings(deadline=None)
@given(pairs())
def test_purity_counts_the_most_frequent_classes(pair: Pair) -> None:
    assert purity(*pair) == pytest.approx(by_definition(*pair), abs=1e-15)
    assert accuracy(*pair) <= purity(*pair)


@every_score
@settings(deadline=None)
@given(pair=pairs())
def test_equal_partitions_score_1(score: Callable[[Any, Any], float], pair: Pair) -> None:
    labels, _ = pair
    assert score(labels, (5 - labels) * 11) == pytest.approx(1, abs=1e-15)
    # And only they do, but for the purity.
    if score is not purity:
        same = numbers_of(pair)[0] == numbers_of(pair)[1] == len(set(zip(*pair, strict=True)))
        assert (score(*pair) == pytest.approx(1, abs=1e-12)) == same


@pytest.mark.parametrize(
    ("labels", "truth", "expected"),
    [
        # One row; one cluster and one class; each row its own in both.
        ([3], [9], dict.fromkeys(SCORES, 1)),
        ([0, 0, 0], [4, 4, 4], dict.fromkeys(SCORES, 1)),
        ([0, 1, 2, 3], [7, 5, 6, 4], dict.fromkeys(SCORES, 1)),
        # One cluster says nothing; nor do as many as there are rows.
        ([0] * 4, [0, 0, 1, 1], {"accuracy": 0.5, "nmi": 0, "ari": 0, "purity": 0.5}),
        ([0, 1, 2, 3], [0, 0, 1, 1], {"accuracy": 0.5, "nmi": 2 / 3, "ari": 0, "purity": 1}),
        # Independent.
        ([0, 1, 0, 1], [0, 0, 1, 1], {"accuracy": 0.5, "nmi": 0, "ari": -0.5, "purity": 0.5}),
    ],
)
def test_extremes(labels: Any, truth: Any, expected: dict[str, float]) -> None:
    for name, score in SCORES.items():
        assert score(labels, truth) == pytest.approx(expected[name], abs=1e-15)
        assert type(score(labels, truth)) is float


# --- rows that are left out -----------------------------------------------------------------------


@every_score
def test_rows_with_minus_1_in_either_are_left_out(score: Callable[[Any, Any], float]) -> None:
    rng = np.random.default_rng(1)
    labels, truth = rng.integers(-1, 5, size=300), rng.integers(-1, 3, size=300)
    kept = (labels >= 0) & (truth >= 0)
    # In one of them, in the other, and in both.
    assert (labels < 0).sum() < (~kept).sum() < (labels < 0).sum() + (truth < 0).sum()
    assert score(labels, truth) == score(labels[kept], truth[kept])


def test_rows_that_a_fit_skips() -> None:
    truth = np.repeat([0, 1], 50)
    x = truth[:, None] * 100 + np.random.default_rng(0).normal(size=(100, 2))
    x[[3, 60, 61]] = np.nan
    labels = lk.KMeans(2, random_state=0, on_bad_rows="skip").fit(x).labels_
    assert (labels == -1).sum() == 3
    assert lk.scores.accuracy(labels, truth) == 1


@every_score
@pytest.mark.parametrize(
    ("labels", "truth"), [([-1, -1], [0, 1]), ([0, 1], [-1, -1]), ([-1, 4], [2, -1])]
)
def test_no_row_is_left(score: Callable[[Any, Any], float], labels: Any, truth: Any) -> None:
    with pytest.raises(ParameterError, match=r"no rows to score, because all 2 rows are "):
        score(labels, truth)


def test_classes_called_minus_1_and_1() -> None:
    """As in svmlight files: left alone they would be one class, of which anything is pure."""
    truth = np.array([-1, 1, -1, 1, 1])
    with pytest.warns(ParameterWarning, match=r"excludes 2 rows.* one class\. If -1 is a class"):
        assert purity([0, 1, 0, 1, 2], truth) == 1
    # No warning: labels of one cluster, or two classes besides.
    assert accuracy([-1, 0, 0], [0, 1, 1]) == 1
    assert accuracy([0, 0, 1], [-1, 1, 2]) == 1


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ([0, 1, 2, 3], r"labels has 3 entries, but truth has 4"),
        ([[0], [1], [2]], r"truth has shape \(3, 1\); give one integer per row"),
        (7, r"truth has shape \(\); give one integer per row"),
        (
            [0.0, 1.0, 2.0],
            r"truth has dtype float64, but integers are required; .*np\.unique\(truth",
        ),
        ([True, False, True], r"truth has dtype bool, but integers"),
        (["a", "b", "c"], r"truth has dtype <U1, but integers"),
        ([0, 1, None], r"truth has dtype object, but integers"),
        ([0, 1, 2**70], r"truth has dtype object, but integers"),
        ([0, -2, -5], r"truth is -2 in row 1; .* or -1 to exclude a row"),
        (np.ma.masked_equal([0, 1, 2], 1), r"truth is a masked array; .*truth\.filled\(-1\)"),
    ],
)
def test_what_is_not_one_integer_a_row_is_refused(bad: Any, told: str) -> None:
    for score in SCORES.values():
        with pytest.raises(ParameterError, match=told):
            score([0, 1, 2], bad)
        with pytest.raises(ParameterError, match=r"^labels "):
            score(bad, [0, 1, 2])


@every_score
def test_no_rows_at_all(score: Callable[[Any, Any], float]) -> None:
    with pytest.raises(ParameterError, match="no rows to score"):
        score([], np.array([], np.int32))


# --- large tables ---------------------------------------------------------------------------------


def test_a_table_that_does_not_fit_is_refused_by_the_accuracy_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, truth = np.arange(2_000), np.arange(2_000) // 2
    monkeypatch.setattr("largek_dask.driver.plan._available", lambda: 2_000 * 1_000 * 8 - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"\(2000, 1000\) needs .* nmi, ari and purity"):
        accuracy(labels, truth)
    assert (purity(labels, truth), nmi(labels, truth) > 0.9, ari(labels, truth)) == (
        1,
        True,
        pytest.approx(adjusted_rand_score(truth, labels)),
    )
    monkeypatch.setattr("largek_dask.driver.plan._available", lambda: 2_000 * 1_000 * 8)
    assert accuracy(labels, truth) == 0.5
