"""How Sphinx makes a site of this folder: ``pip install -e '.[docs]'``, then ``sphinx-build -M
html docs docs/_build -W``. Any host can serve the result; it loads nothing from elsewhere.

The pages are Markdown (MyST), and their programs run in tests/test_docs.py. While the site is
built, the commands of blocks marked ``{run}`` run (run_commands.py), and the reference is made from
the docstrings (make_reference.py). These have Args:, Returns:, Raises: and Example:, which
sphinx.ext.napoleon reads; numpydoc knows only NumPy's underlined sections.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import make_reference  # noqa: E402

import mnpar  # noqa: E402

project = "mnpar"
author = "the mnpar developers"
copyright = "the mnpar developers, MIT licence"
version = release = mnpar.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "run_commands",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
# furo's own dark style underlines the names of modules, as if they were links
pygments_dark_style = "github-dark"
html_title = f"mnpar {release}"
html_show_sphinx = html_copy_source = False
html_static_path = ["style"]
html_css_files = ["pages.css"]
# a copied example runs: prompts and output are left out
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
# what commands have printed is nothing to copy
copybutton_selector = "div.highlight:not(.output *) pre"

autodoc_typehints = (
    "none"  # shapes and dtypes stand in the docstrings, types in the source
)
autodoc_member_order = "bysource"
autosummary_generate = (
    False  # tables only; the entries they lead to are on the same page
)
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = ["Source"]
toc_object_entries_show_parents = "hide"


def show_docstrings(app, name, source):
    """Put the docstrings of a module in place of the list of its names."""
    module = name.removeprefix("reference/")
    if module in dict(make_reference.MODULES):
        source[0] = make_reference.entries(module)


def setup(app):
    app.connect("source-read", show_docstrings)
