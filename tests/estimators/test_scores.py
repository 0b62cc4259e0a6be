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
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import largek_dask as lk
from largek_dask.errors import NotEnoughMemoryError, ParameterError, ParameterWarning
from largek_dask.estimators import scores
from largek_dask.estimators.scores import Contingency, accuracy, ari, nmi, purity

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


@settings(deadline=None)
@given(pairs())
def test_values_are_those_of_scikit_learn(pair: Pair) -> None:
    labels, truth = pair
    assert nmi(labels, truth) == pytest.approx(
        normalized_mutual_info_score(truth, labels, average_method="arithmetic"), abs=1e-12
    )
    assert ari(labels, truth) == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)


@every_score
@settings(deadline=None)
@given(pair=pairs(), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([1, 7, 10**9, 10**17]))
def test_names_do_not_matter(
    score: Callable[[Any, Any], float], pair: Pair, seed: int, spread: int
) -> None:
    """To the bit: what clusters and classes are called, of which type, and the order of rows."""
    rng = np.random.default_rng(seed)
    labels, truth = (rng.permutation(6)[numbers] * spread for numbers in pair)
    order = rng.permutation(len(labels))
    assert score(labels[order], truth[order].astype(">u8")) == score(*pair)


@every_score
@settings(deadline=None)
@given(pair=pairs())
def test_equal_partitions_score_1(score: Callable[[Any, Any], float], pair: Pair) -> None:
    labels, _ = pair
    assert score(labels, (5 - labels) * 11) == 1
    # And only they do, but for the purity.
    if score is not purity:
        same = numbers_of(pair)[0] == numbers_of(pair)[1] == len(set(zip(*pair, strict=True)))
        assert (score(*pair) == 1) == same


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
    found = Contingency.of(labels, truth)
    assert (found.n_left_out, found.n_rows) == ((~kept).sum(), kept.sum())
    assert getattr(found, score.__name__)() == score(labels, truth)


def test_rows_that_a_fit_skips() -> None:
    truth = np.repeat([0, 1], 50)
    x = truth[:, None] * 100 + np.random.default_rng(0).normal(size=(100, 2))
    x[[3, 60, 61]] = np.nan
    labels = lk.KMeans(2, random_state=0, on_bad_rows="skip").fit(x).labels_
    found = lk.scores.Contingency.of(labels, truth)
    assert (found.accuracy(), found.n_left_out, found.n_rows) == (1, 3, 97)


@every_score
@pytest.mark.parametrize(
    ("labels", "truth"), [([-1, -1], [0, 1]), ([0, 1], [-1, -1]), ([-1, 4], [2, -1])]
)
def test_no_row_is_left(score: Callable[[Any, Any], float], labels: Any, truth: Any) -> None:
    with pytest.raises(ParameterError, match=r"no row is left to score: all 2 have the label -1"):
        score(labels, truth)


def test_classes_called_minus_1_and_1() -> None:
    """As in svmlight files: left alone they would be one class, of which anything is pure."""
    truth = np.array([-1, 1, -1, 1, 1])
    with pytest.warns(ParameterWarning, match=r"\(2 rows are\).* one class, 1\. If -1 is a class"):
        assert purity([0, 1, 0, 1, 2], truth) == 1
    # No warning: labels of one cluster, or two classes besides.
    assert accuracy([-1, 0, 0], [0, 1, 1]) == 1
    assert accuracy([0, 0, 1], [-1, 1, 2]) == 1


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ([0, 1, 2, 3], r"labels has 3 rows and truth 4"),
        ([[0], [1], [2]], r"truth has shape \(3, 1\); give one integer per row"),
        (7, r"truth has shape \(\); give one integer per row"),
        ([[0, 1], [2]], r"truth must be one integer a row"),
        ([0.0, 1.0, 2.0], r"truth holds float64, not integers: .*np\.unique\(truth"),
        ([True, False, True], r"truth holds bool, not integers"),
        (["a", "b", "c"], r"truth holds <U1, not integers"),
        ([0, 1, None], r"truth holds object, not integers"),
        ([0, 1, 2**70], r"truth holds object, not integers"),
        ([0, -2, -5], r"truth holds -2 in row 1: .* -1 leaves a row out"),
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
    with pytest.raises(ParameterError, match="labels and truth are empty"):
        score([], np.array([], np.int32))


# --- large tables ---------------------------------------------------------------------------------


def test_a_table_that_does_not_fit_is_refused_by_the_accuracy_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, truth = np.arange(2_000), np.arange(2_000) // 2
    monkeypatch.setattr("largek_dask.driver.plan._available", lambda: 2_000 * 1_000 * 8 - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"\(1000, 2000\) needs .* nmi, ari and purity"):
        accuracy(labels, truth)
    assert (purity(labels, truth), nmi(labels, truth) > 0.9, ari(labels, truth)) == (
        1,
        True,
        pytest.approx(adjusted_rand_score(truth, labels)),
    )
    monkeypatch.setattr("largek_dask.driver.plan._available", lambda: 2_000 * 1_000 * 8)
    assert accuracy(labels, truth) == 0.5


def test_many_clusters_and_classes_take_no_dense_table() -> None:
    """One of all pairs would have 4·10^10 entries; rows are as many as they are."""
    n = 200_000
    truth = np.random.default_rng(0).permutation(n)
    found = Contingency.of(np.arange(n) * 10**9, truth)
    assert found.cells.nnz == n
    assert (found.nmi(), found.ari(), found.purity()) == (1, 1, 1)


@every_score
def test_rows_are_counted_block_by_block(
    score: Callable[[Any, Any], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    labels, truth = rng.integers(30, size=1_000), rng.integers(9, size=1_000)
    expected = Contingency.of(labels, truth)
    value = score(labels, truth)
    monkeypatch.setattr(scores, "BLOCK_ROWS", 17)
    found = Contingency.of(labels, truth)
    np.testing.assert_array_equal(found.cells.toarray(), expected.cells.toarray())
    assert found.cells.toarray().sum() == 1_000
    assert score(labels, truth) == value


def test_pairs_of_very_many_rows_do_not_overflow() -> None:
    """10^10 rows: their pairs, and the products of such, are beyond 64 bits."""
    sizes = np.array([[4, 1], [2, 3]])
    small, large = (Contingency(scores.csr_matrix(sizes * times), 0) for times in (10**6, 10**9))
    assert large.n_rows == 10**10
    assert large.ari() == pytest.approx(small.ari(), rel=1e-6)
    assert large.nmi() == pytest.approx(small.nmi(), rel=1e-12)
