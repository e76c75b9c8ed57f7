"""How Sphinx makes pages of this folder: ``pip install -e '.[docs]'``, then ``sphinx-build -W -b
html docs docs/_build``.

The pages are Markdown (MyST), and their programs run in tests/test_docs.py. The reference is made
from the docstrings. These have Args:, Returns:, Raises: and Example:, which sphinx.ext.napoleon
reads; numpydoc knows only NumPy's underlined sections.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import make_reference  # noqa: E402

import mnpar  # noqa: E402

make_reference.write(HERE / "reference")

project = "mnpar"
author = "the authors of mnpar"
copyright = "the authors of mnpar, MIT licence"
version = release = mnpar.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"mnpar {release}"
html_show_sphinx = html_copy_source = False

autodoc_typehints = "none"  # shapes and dtypes stand in the docstrings, types in the source
autodoc_member_order = "bysource"
autosummary_generate = False  # tables only; the entries they lead to are on the same page
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = ["Source"]
toc_object_entries_show_parents = "hide"
