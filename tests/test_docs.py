"""The documentation names what there is, and every public function has an example that runs."""

import contextlib
import contextvars
import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import mnpar
import mnpar.functions
from mnpar.parallel.plan import divisions

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
INDEX = (DOCS / "index.md").read_text()
SIDEBAR = dict(re.findall(r":caption: (.*)\n((?:[^`].*\n)+)", INDEX))
CAPTIONS = ("Getting started", "Training", "Parallelism")
TUTORIALS = re.findall(r"<(\w+)>", "".join(SIDEBAR[caption] for caption in CAPTIONS))
TUTORIALS += ["cluster", "machines", "profiling", "seed_systems"]
WIDTH = 88  # of code: this much is seen at 1280 pixels, beside the sidebar and the page's contents


def reference():
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_module():
    listed = {name for name, _ in reference().MODULES}
    internal = {"mnpar.backend", "mnpar.serializer", "mnpar.reporter"}
    aliases = (
        "backends communicators configuration cuda function function_node initializer link "
        "nccl optimizer optimizer_hooks variable"
    )
    # modules where Chainer has names that are listed elsewhere
    internal |= {f"mnpar.{name}" for name in aliases.split()}
    modules = {f"mnpar.{name}" for name in mnpar.__all__ if inspect.ismodule(getattr(mnpar, name))}
    assert modules - internal <= listed


def test_the_reference_in_the_repository_is_that_of_the_source():
    pages = reference().pages()
    written = {path.stem: path.read_text() for path in (DOCS / "reference").glob("*.md")}
    changed = [name for name in sorted({*pages, *written}) if pages.get(name) != written.get(name)]
    assert not changed, f"run python docs/make_reference.py, which changes {changed}"


def test_every_public_name_has_an_entry_on_the_site():
    make = reference()
    for name, _ in make.MODULES:
        text = make.entries(name)
        entries = re.findall(r"^\.\. auto(?:function|class):: (\w+)", text, re.M)
        assert sorted(entries) == sorted(make.own(name)[0])


def test_everything_has_one_place_in_the_reference():
    make = reference()
    places = [
        (one, getattr(make.find(name), one))
        for name, _ in make.MODULES
        for one in make.own(name)[0]
    ]
    assert len(set(places)) == len(places) > 400


def test_an_entry_has_what_a_class_inherits_from_bases_without_an_entry():
    text = reference().entries("mnpar")
    ends = set(re.search(r":inherited-members: (.*)", text)[1].split(", "))
    assert {"object", "Variable", "Link"} <= ends
    assert not ends & {
        base.__name__ for base in (mnpar.Variable.__base__, *mnpar.Communicator.__mro__[:-1])
    }


@pytest.mark.parametrize("owner", [mnpar, mnpar.functions], ids=["mnpar", "mnpar.functions"])
def test_every_public_function_has_an_example(owner):
    finder = doctest.DocTestParser()
    missing = []
    for name in owner.__all__:
        thing = getattr(owner, name)
        if not (inspect.isfunction(thing) or inspect.isclass(thing)) or name in (
            "as_variable",
            "get_current_reporter",
            "DataSizeError",
        ):
            continue
        text = inspect.getdoc(thing) or ""
        if not finder.get_examples(text) and "See :func:" not in text and "Example:" not in text:
            missing.append(name)
    assert not missing, f"give their docstrings a section 'Example:' with a doctest: {missing}"


def snippets(page):
    """The Python of a page: (line, text), in order. A snippet goes on from the ones before it, as
    cells of a notebook do.
    """
    text = (DOCS / page).read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M)
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in blocks]


def failures(page):
    """Run the snippets of a page; how many did not print what it says."""
    scope = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for line, text in snippets(page):
        if text.startswith(">>> "):
            test = doctest.DocTestParser().get_doctest(text, {}, page, str(DOCS / page), line)
            test.globs = scope
            runner.run(test, clear_globs=False)
        else:
            exec(compile("\n" * line + text, str(DOCS / page), "exec"), scope)
    return runner.summarize(verbose=False).failed


# second runs in .ci/run, after these are installed, have these pages
NEEDS = {
    "kernels.md": ["numba"],
    "libraries.md": ["torch", "jax", "numba"],
    "pytorch.md": ["torch"],
}


def marks(page):
    missing = [name for name in NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]
    return [pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")]


@pytest.fixture
def own_divisions():
    """Forget the classes that a page registers: other tests read the table's words."""
    before = dict(divisions.DIVISIONS)
    yield
    divisions.DIVISIONS.clear()
    divisions.DIVISIONS.update(before)


@pytest.mark.usefixtures("debug_off", "own_divisions")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page)) for page in PAGES if snippets(page)]
)
def test_the_snippets_of_a_page_run_and_print_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert failures(page) == 0


def on_processes(world):
    """What stands for mnpar.run where ranks are processes: the first so many run the program, each
    time on a new tape.
    """

    def run(program, ranks, args=()):
        group = world.split(0 if world.rank < ranks else None, world.rank)
        args = world.bcast_obj(args)
        result = None if group is None else contextvars.Context().run(program, group, *args)
        return world.allgather_obj(result)[:ranks]

    return run


@pytest.mark.usefixtures("debug_off", "own_divisions")
@pytest.mark.ranks(4, on="mpi")
@pytest.mark.parametrize("page", [pytest.param(one, marks=marks(f"{one}.md")) for one in TUTORIALS])
def test_a_tutorial_says_the_same_under_mpiexec(page, comm, tmp_path, monkeypatch):
    monkeypatch.chdir(comm.bcast_obj(str(tmp_path)))
    monkeypatch.setattr(mnpar, "run", on_processes(comm))
    # there may be more processes than these
    monkeypatch.setattr(mnpar, "create_communicator", lambda: comm)
    assert failures(f"{page}.md") == 0


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_in_the_sidebar(page):
    listed = re.findall(r"<(\w+)>$", INDEX, re.M)
    assert page == "index.md" or page.removesuffix(".md") in listed


def test_every_example_is_in_the_gallery():
    examples = DOCS.parent / "examples"
    text = (DOCS / "gallery.md").read_text()
    scripts = [path for path in sorted(examples.rglob("*.py")) if path.parent.name != "models"]
    names = [str(path.relative_to(examples)) for path in scripts]
    assert [name for name in names if f"python examples/{name}" not in text] == []


@pytest.mark.parametrize("drawing", sorted(path.name for path in DOCS.glob("drawings/*.svg")))
def test_a_drawing_has_colours_for_dark_pages(drawing):
    style, drawn = (DOCS / "drawings" / drawing).read_text().split("</style>")
    used = re.findall(r'<(text|rect|path)[^>]* ((?:fill|stroke)="#\w+")', drawn)
    assert [
        rule for rule in sorted({f"{tag}[{one}]" for tag, one in used}) if rule not in style
    ] == []


def code(page):
    """The lines of code of a page, in fences and indented, with their numbers."""
    fenced = False
    for number, line in enumerate((DOCS / page).read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield number, line if fenced else line[4:]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_fits_the_screen(page):
    wide = [number for number, line in code(page) if len(line) > WIDTH]
    assert not wide, f"lines of more than {WIDTH} characters in docs/{page}: {wide}"


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_of_a_page_opens_with_a_word_whose_noun_comes_later(page):
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.S)
    opening = r"(?:^|(?<=[.!?:]\s)|(?<=\n\n)|(?<=\n[*-] ))(?:Of|What|Whether|Those|That|Whoever)\b"
    found = [
        text[match.start() : match.start() + 60]
        for match in re.finditer(rf"{opening}[^?#\n]*\n?[^?#\n]*", text)
        if "?" not in match[0]
    ]
    assert not found


def anchors(path):
    """The headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, "reference/index.md", "reference/mnpar.functions.md"])
def test_the_links_of_a_page_lead_to_files_of_the_repository(page):
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        file = ((DOCS / page).parent / path) if path else DOCS / page
        if not file.is_file() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def there(names, owner=mnpar):
    """Whether mnpar has this, attribute by attribute; a name that ends in ``_`` stands for
    several, and a module that nothing has imported yet is there, too.
    """
    if names and inspect.ismodule(owner) and not hasattr(owner, names[0]):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"{owner.__name__}.{names[0]}")
    return (
        not names
        or names[0].endswith("_")
        or (hasattr(owner, names[0]) and there(names[1:], getattr(owner, names[0])))
    )


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks(page)) for page in PAGES])
def test_a_page_names_what_there_is(page):
    """Functions as F.name, links as L.name, mnpar.any.name, what a communicator has, files of the
    examples.
    """
    text = (DOCS / page).read_text()
    assert [
        name
        for name in sorted(set(re.findall(r"\bmnpar((?:\.[a-zA-Z]\w*)+)", text)))
        if not there(name.split(".")[1:])
    ] == []
    comm = mnpar.create_communicator("self")
    assert [
        name
        for name in sorted(set(re.findall(r"\bcomm\.([a-z]\w*)", text)))
        if not hasattr(comm, name)
    ] == []
    for letter, module in (("F", mnpar.functions), ("L", mnpar.links)):
        names = set(re.findall(rf"\b{letter}\.(\w+)", text))
        assert (
            sorted(name for name in names if not name.endswith("_") and not hasattr(module, name))
            == []
        )
    assert [
        path
        for path in re.findall(r"examples/[\w/]+\.py", text)
        if not (DOCS.parent / path).exists()
    ] == []
