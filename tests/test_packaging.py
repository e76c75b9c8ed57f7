"""What is published tells one story: the wheel, the recipes, the citation and the paper agree with
setup.cfg.
"""

import ast
import configparser
import re
from pathlib import Path

import pytest

import mnpar

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")


def requirements(text):
    """What a list of setup.cfg requires: name and versions."""
    lines = [line.strip() for line in text.splitlines()]
    return dict(
        re.match(r"([\w-]+)(.*)", line).groups()
        for line in lines
        if line and not line.startswith(("#", "mnpar["))
    )


REQUIRED = requirements(SETUP["options"]["install_requires"])
EXTRAS = {
    name: requirements(SETUP["options.extras_require"][name]) for name in ("mpi", "fast", "torch")
}
PYTHONS = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
RECIPE = (PACKAGING / "conda" / "recipe.yaml").read_text(encoding="utf-8")
SPACK = (PACKAGING / "spack" / "py_mnpar" / "package.py").read_text(encoding="utf-8")
PAPER = (PACKAGING / "paper" / "paper.md").read_text(encoding="utf-8")
BIBLIOGRAPHY = (PACKAGING / "paper" / "paper.bib").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_file_names_the_one_version():
    assert SETUP["metadata"]["version"] == "attr: mnpar.__version__"
    for text, pattern in (
        (RECIPE, r'^  version: "(.+)"$'),
        (SPACK, r'^    version\("([^"]+)"'),
        (CITATION, r"^version: (.+)$"),
    ):
        assert re.findall(pattern, text, re.M) == [mnpar.__version__], pattern


def test_the_pythons_are_those_that_setup_cfg_names():
    oldest = SETUP["options"]["python_requires"].removeprefix(">=")
    assert [f"3.{minor}" for minor in range(11, 11 + len(PYTHONS))] == PYTHONS
    assert PYTHONS[0] == oldest
    assert f'python_min: "{oldest}"' in RECIPE
    assert f'depends_on("python@{oldest}:"' in SPACK


def test_the_sdist_has_every_file_beside_setup_cfg():
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    named = set(" ".join(re.findall(r"^include (.+)$", manifest, re.M)).split())
    # what setuptools takes by itself
    usual = {"README.md", "LICENSE", "MANIFEST.in", "pyproject.toml", "setup.cfg"}
    usual |= {f"{name}.py" for name in SETUP["options"]["py_modules"].split()}
    suffixes = (".py", ".md", ".cff", ".toml", ".cfg")
    there = {path.name for path in ROOT.iterdir() if path.suffix in suffixes}
    assert there <= named | usual
    assert "conftest.py" in named  # or its tests would not run as they do here


def test_conda_requires_what_setup_cfg_does():
    run = RECIPE.split("  run:\n")[1].split("  run_constraints:")[0]
    assert dict(re.findall(r"^    - (?!python)(\w+) ?(.*)$", run, re.M)) == REQUIRED
    constraints = RECIPE.split("  run_constraints:\n")[1].split("\ntests:")[0]
    found = dict(re.findall(r"^    - (\w+) (.+)$", constraints, re.M))
    assert found == {
        "mpi4py": EXTRAS["mpi"]["mpi4py"],
        "numba": EXTRAS["fast"]["numba"],
        "pytorch": EXTRAS["torch"]["torch"],
    }


def test_a_command_of_the_conda_recipe_with_a_colon_is_quoted():
    """Otherwise YAML reads it as a mapping."""
    items = re.findall(r"^ +- (.+)$", RECIPE, re.M)
    commands = [item for item in items if ": " in item and not re.match(r"\w+: ", item)]
    assert commands
    assert all(command[0] in "'\"" for command in commands)


def spack_versions(versions):
    """Spack's spelling of a range: ``>=4.1,<5`` is ``@4.1:4``, as 5 is left out."""
    least = re.search(r">=([\d.]+)", versions)
    below = re.search(r"<(\d+)$", versions)
    end = str(int(below[1]) - 1) if below else ""
    return f"@{least[1]}:{end}" if least else ""


def test_spack_requires_what_setup_cfg_does():
    calls = [
        (ast.literal_eval(node.args[0]), {word.arg: word.value for word in node.keywords})
        for node in ast.walk(ast.parse(SPACK))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "depends_on"
    ]
    found = {}
    for what, words in calls:
        when = ast.literal_eval(words["when"]) if "when" in words else ""
        found.setdefault(when, []).append(what)
    assert found[""][2:] == [f"py-{name}{spack_versions(v)}" for name, v in REQUIRED.items()]
    for extra in EXTRAS:
        # MPI itself, here a wheel, comes with Spack's mpi4py
        wanted = {name: v for name, v in EXTRAS[extra].items() if name != "mpich"}
        assert found[f"+{extra}"] == [f"py-{name}{spack_versions(v)}" for name, v in wanted.items()]
        assert f'variant("{extra}"' in SPACK


def test_spack_finds_the_package_and_its_base_where_it_looks_for_them():
    """Since Spack 1.0 a package's folder is a module, and build systems are imported."""
    (folder,) = (PACKAGING / "spack").iterdir()
    assert folder.name.isidentifier()
    imported = {
        alias.name: node.module
        for node in ast.walk(ast.parse(SPACK))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (package,) = [node for node in ast.parse(SPACK).body if isinstance(node, ast.ClassDef)]
    assert [imported[base.id] for base in package.bases] == [
        "spack_repo.builtin.build_systems.python"
    ]


def test_the_citation_has_what_its_format_requires():
    keys = re.findall(r"^([\w-]+):", CITATION, re.M)
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(keys)
    assert len(keys) == len(set(keys))
    assert f"license: {SETUP['metadata']['license']}\n" in CITATION


def test_the_paper_has_joss_parts_and_cites_what_its_bibliography_has():
    for part in ("Summary", "Statement of need", "References"):
        assert f"\n# {part}\n" in PAPER
    assert 250 < len(PAPER.split()) < 1750  # JOSS' limits
    cited = set(re.findall(r"@([a-z]\w+)", PAPER))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", BIBLIOGRAPHY, re.M))


def test_the_papers_figures_are_those_of_the_page_of_performance():
    """To a quarter: the page is measured anew more often than the paper is written."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (\d\.\d\d) \|$", PAPER, re.M)
    assert len(rows) == 8
    for name, factor in rows:
        (row,) = re.findall(rf"^\| {re.escape(name)} \|(.+)\|$", page, re.M)
        cells = [cell.strip() for cell in row.split("|")]
        measured = float(cells[-1] if name.endswith("ranks") else cells[1])
        assert float(factor) == pytest.approx(measured, rel=0.25), name
