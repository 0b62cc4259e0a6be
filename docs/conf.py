"""How Sphinx makes the site: ``python -m sphinx -W -n -E docs site``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from largek_dask.version import __version__

project = "largek_dask"
author = "The largek_dask developers"
project_copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "largek_site"]
exclude_patterns = ["_ext", "_executed", "_static"]

html_theme = "furo"
html_title = f"largek_dask {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
# Summaries would be fetched, which browsers forbid to pages from files.
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": False}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Notebooks are executed by their test, once; the site shows what it has left.
nb_execution_mode = "off"
nb_merge_streams = True

# Docstrings say types in words, so signatures show names and defaults alone.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Names that docstrings mention and that have no page. One that is not needed is a warning.
nitpick_ignore = [
    # What a model holds is in the reference of file formats.
    ("py:class", "largek_dask.algorithms.dcd.arrays.PathArrays"),
    ("py:class", "largek_dask.algorithms.kmeans.CenterArrays"),
    ("py:class", "largek_dask.algorithms.mixture.MixtureArrays"),
    ("py:class", "largek_dask.kernels.blocks.SparseBlock"),
    # Modules and functions of an algorithm, in what it says of its paper.
    ("py:func", "cluster_sse"),
    ("py:func", "growth_ratio"),
    ("py:func", "nested_chunk"),
    ("py:meth", "NMBatch._next_batch"),
    ("py:meth", "NMBatch.init"),
    ("py:meth", "NMBatch.step"),
    ("py:mod", "bundle"),
    ("py:mod", "labels"),
    ("py:mod", "largek_dask.algorithms.parts.labels"),
    ("py:mod", "largek_dask.algorithms.parts.nested"),
    ("py:mod", "largek_dask.algorithms.truncated.passes"),
    ("py:mod", "largek_dask.algorithms.truncated.schedule"),
    ("py:mod", "largek_dask.kernels.bounds"),
    ("py:mod", "path_search"),
    ("py:mod", "published"),
    ("py:mod", "snapshot"),
    # Pages of scikit-learn's own site.
    ("std:ref", "df_output_transform"),
    ("std:ref", "sphx_glr_auto_examples_miscellaneous_plot_set_output.py"),
]
