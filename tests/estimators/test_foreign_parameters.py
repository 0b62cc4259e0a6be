"""Parameters of scripts for other libraries."""

import inspect

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import largek_dask as lk
from largek_dask.errors import ParameterError
from tests.helpers.covering import slow

X = np.random.default_rng(0).normal(size=(300, 3)) + 6 * np.repeat(np.eye(3), 100, axis=0)


def parameters_of(estimator):
    return [name for name in inspect.signature(estimator).parameters if name != "self"]


# --- what is taken ------------------------------------------------------------------------------


def fitted(x=X, **parameters):
    return lk.KMeans(3, **{"random_state": 0, **parameters}).fit(x)


@pytest.mark.parametrize("verbose", [True, np.True_, 1, 2])
def test_verbose(verbose, capsys):
    fitted(verbose=verbose)
    assert "stopped: " in capsys.readouterr().err
    fitted(verbose=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["elkan", "full"])
def test_exact_k_means_by_its_other_names(name):
    wanted = fitted(algorithm="lloyd", init=X[:3])
    km = fitted(algorithm=name, init=X[:3])
    assert km.model_.provenance["engine"]["name"] == "Lloyd"
    assert km.model_.digest() == wanted.model_.digest()
    assert km.algorithm == name


def test_scalable_plus_plus_is_in_parallel():
    asked = {"algorithm": "lloyd", "max_iter": 1}
    wanted = fitted(init="k-means||", **asked).model_
    assert wanted.digest() != fitted(init="random", **asked).model_.digest()
    model = fitted(init="scalable-k-means++", **asked).model_
    assert model.digest() == wanted.digest()
    assert model.provenance["parameters"]["init"] == "k-means||"


@pytest.mark.parametrize(
    ("parameters", "starts"),
    [
        ({"algorithm": "lloyd", "init": "random"}, 10),
        ({"algorithm": lk.Lloyd(), "init": "random"}, 10),
        (
            {"algorithm": "elkan", "init": lambda x, k, random_state: x[:k] + random_state.rand()},
            10,
        ),
        ({"algorithm": "lloyd", "init": "k-means++"}, 1),
        ({"algorithm": "lloyd", "init": X[:3]}, 1),
        ({"algorithm": "auto", "init": "random"}, 1),
        ({"algorithm": "partition-path"}, 1),
    ],
)
def test_starts_as_many_as_suit(parameters, starts):
    km = fitted(n_init="auto", **parameters)
    assert km.model_.provenance["parameters"]["n_init"] == starts
    assert km.n_init == "auto"


class Drawn:
    """A function for first centres that knows how it was called."""

    def __init__(self):
        self.calls = []

    def __call__(self, x, n_clusters, random_state):
        self.calls.append(x)
        self.state = random_state
        rows = x[random_state.choice(x.shape[0], n_clusters, replace=False)]
        return rows.toarray() if scipy.sparse.issparse(rows) else rows


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (X, np.ndarray),
        (scipy.sparse.csr_matrix(np.where(X > 1, X, 0)), scipy.sparse.csr_matrix),
        *slow(
            (X.tolist(), np.ndarray),
            (pd.DataFrame(X, columns=["a", "b", "c"]), np.ndarray),
            ((X * 9).astype(np.int16), np.ndarray),
        ),
    ],
    ids=["array", "sparse", "list", "DataFrame", "integers"],
)
def test_init_by_a_function(x, kind):
    init = Drawn()
    km = fitted(x, init=init, algorithm="lloyd")
    assert [type(given) for given in init.calls] == [kind]
    assert isinstance(init.state, np.random.RandomState)
    begun = fitted(x, init=Drawn()(init.calls[0], 3, np.random.RandomState(0)), algorithm="lloyd")
    assert begun.model_.digest() == km.model_.digest()


def test_init_by_a_function_once_a_start():
    """The best start is kept, whichever it is, and each begins where it was told to."""
    wells = np.repeat([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]], 50, axis=0)
    bad, good = np.array([[0.0], [1.0], [15.0]]), np.array([[0.5], [10.5], [20.5]])
    alone = [lk.KMeans(3, init=c, algorithm="lloyd").fit(wells).inertia_ for c in (bad, good)]
    assert alone[0] > 10 * alone[1]
    for order in ([bad, good], [good, bad]):
        given = iter(order)
        asked = {"n_init": 2, "algorithm": "lloyd"}
        km = lk.KMeans(3, init=lambda *_, given=given, **__: next(given), **asked)
        assert km.fit(wells).inertia_ == alone[1]
        assert next(given, None) is None
        km = lk.KMeans(3, init=np.stack(order), **asked).fit(wells)
        assert km.inertia_ == alone[1]


def test_init_by_a_function_of_rows_elsewhere(tmp_path):
    url = str(tmp_path / "x.zarr")
    lk.ingest(X, url, progress=False)
    heard = []

    def init(source, n_clusters, random_state):
        heard.append(source)
        return X[:n_clusters]

    km = fitted(url, init=init)
    assert heard == [url]
    assert km.model_.digest() == fitted(url, init=X[:3]).model_.digest()


def test_init_by_a_function_in_partial_fit():
    init = Drawn()
    km = lk.KMeans(3, init=init, n_init=4, random_state=0).partial_fit(X).partial_fit(X)
    assert len(init.calls) == 1
    np.testing.assert_array_equal(km.labels_, km.predict(X))
    begun = lk.KMeans(3, init=Drawn()(X, 3, np.random.RandomState(0)), random_state=0)
    np.testing.assert_array_equal(
        begun.partial_fit(X).partial_fit(X).cluster_centers_, km.cluster_centers_
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_init": "most"}, "n_init must be a positive integer or 'auto', got 'most'"),
        ({"n_init": None}, "n_init must be a positive integer or 'auto', got None"),
        ({"n_init": 0}, "n_init must be an integer of at least 1, got 0"),
        ({"verbose": "loud"}, "verbose must be an integer of at least 0, got 'loud'"),
        ({"verbose": -1}, "verbose must be an integer of at least 0, got -1"),
        ({"init": lambda *_, **__: X[:2]}, r"init has shape \(2, 3\)"),
        ({"init": lambda *_, **__: "random rows"}, r"init must return .* \(3, 3\)"),
        ({"init": lambda *_, **__: None}, r"init must return .* \(3, 3\)"),
        ({"init": X[:9].reshape(3, 3, 3)}, r"centres for 3 starts .*n_init=1; use n_init=3"),
        ({"init": X[:6].reshape(3, 2, 3), "n_init": 3}, r"init has shape \(2, 3\)"),
        ({"init": np.zeros((1, 1, 3, 3))}, r"init has shape \(1, 1, 3, 3\)"),
    ],
)
def test_what_is_wrong_gets_one_clear_error(parameters, message):
    km = lk.KMeans(3, **parameters)
    with pytest.raises(ParameterError, match=message):
        km.fit(X)


def test_centres_of_several_shapes():
    given = iter([X[:3], X[:2]])
    with pytest.raises(ParameterError, match=r"got \(3, 3\), then \(2, 3\)"):
        lk.KMeans(3, init=lambda *_, **__: next(given), n_init=2).fit(X)


def first_rows(x, n_clusters, random_state):
    return x[:n_clusters]


def test_searched_for_in_a_pipeline_with_tables_out():
    pipe = make_pipeline(StandardScaler(), lk.KMeans(random_state=0))
    asked = {
        "kmeans__n_clusters": [2, 3],
        "kmeans__algorithm": ["elkan", "auto"],
        "kmeans__n_init": ["auto"],
        "kmeans__init": [first_rows, "scalable-k-means++"],
    }
    table = pd.DataFrame(X, columns=["a", "b", "c"]).sample(frac=1, random_state=0)
    grid = GridSearchCV(pipe, asked, cv=2, error_score="raise").fit(table)
    assert grid.best_params_["kmeans__n_clusters"] == 3
    assert len(grid.cv_results_["params"]) == 8
    found = clone(grid.best_estimator_).set_output(transform="pandas").fit_transform(table)
    assert list(found.columns) == ["kmeans0", "kmeans1", "kmeans2"]
    assert found.index.equals(table.index)
