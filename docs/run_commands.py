"""A directive of Sphinx that runs commands while the site is built, and shows what they leave.

In the repository the block shows the commands alone::

    ```{run}
    mpiexec -n 4 python examples/ring.py
    ```

On the site, the source of the scripts that the commands name comes first, then what they print,
then the pictures and films (PNG and HTML files) that they write into the folder ``result``.
Commands run in an empty folder that has ``examples`` and ``docs`` in it, in the environment of
Sphinx. A command that fails is a warning, which ``-W`` makes an error. Results are kept beside the
pages in ``runs``, and used again until a Python file changes. ``sphinx-build -D run_commands=0``
leaves the commands out: for a look at pages, and where tests run the examples anyway.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
SOURCES = ("mnpar", "examples", "docs")  # what results depend on
LINKED = ("examples", "docs")
FOLDER = "runs"
SHOWN = (".png", ".html")  # of the files that commands write


def fingerprint():
    """The digest of all Python files that a command can run."""
    digest = hashlib.sha256()
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(commands, folder):
    """Run commands in a folder. If they succeed, ``output.txt`` has what they print."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    for name in LINKED:
        (folder / name).unlink()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.suffix not in SHOWN:
            path.unlink()
    if not done.returncode:
        text = done.stdout.replace(sys.prefix, ".venv").replace(str(ROOT), ".")
        (folder / "output.txt").write_text(text.rstrip())
    return done


class Run(SphinxDirective):
    """The directive ``{run}``."""

    has_content = True

    def run(self):
        commands = "\n".join(self.content)
        shown = [code_block(commands, "console")]
        for script in dict.fromkeys(
            re.findall(r"(?:examples|docs)/[\w/]+\.py", commands)
        ):
            shown += folded(script)
        if not self.config.run_commands:
            return shown
        key = commands + self.env.app.fingerprint
        name = hashlib.sha256(key.encode()).hexdigest()[:12]
        folder = Path(self.env.app.outdir) / FOLDER / name
        if not (folder / "output.txt").exists():
            done = run(commands, folder)
            if done.returncode:
                code = f"exit code {done.returncode} of\n{commands}"
                text = f"{code}\n{done.stdout}{done.stderr}"
                logging.getLogger(__name__).warning(text, location=self.get_location())
                return []
        for path in (ROOT / "examples").rglob("*.py"):
            self.env.note_dependency(
                str(path)
            )  # pages are made again when these change
        text = (folder / "output.txt").read_text()
        box = nodes.container(classes=["output", f"run-{name}"])
        if text:
            box += code_block(text, "text")
        up = "../" * self.env.docname.count("/")
        for path in sorted((folder / "result").rglob("*.*")):
            box += raw(
                shown_file(path, f"{up}{FOLDER}/{name}/{path.relative_to(folder)}")
            )
        return [*shown, box]


def shown_file(path, where):
    """The HTML that shows a picture or a film."""
    if path.suffix == ".png":
        return f'<img src="{where}" alt="{path.stem}, drawn by the program" />'
    return f'<iframe class="film" src="{where}" title="{path.stem}"></iframe>'


def code_block(text, language):
    """A block of code."""
    return nodes.literal_block(text, text, language=language)


def raw(html):
    """A piece of HTML."""
    return nodes.raw("", html, format="html")


def folded(script):
    """The source of a script, closed until somebody opens it."""
    text = (ROOT / script).read_text()
    head = f"<details><summary>{script}, {len(text.splitlines())} lines</summary>"
    return [raw(head), code_block(text, "python"), raw("</details>")]


def forget_old_runs(app, exception):
    """Remove results that no page shows any longer."""
    if exception is None and app.builder.format == "html":
        pages = "".join(path.read_text() for path in Path(app.outdir).glob("*.html"))
        for folder in (Path(app.outdir) / FOLDER).glob("*"):
            if f"run-{folder.name}" not in pages:
                shutil.rmtree(folder)


def setup(app):
    app.fingerprint = fingerprint()
    app.add_config_value("run_commands", True, "env", [bool])
    app.add_directive("run", Run)
    app.connect("build-finished", forget_old_runs)
    return {"parallel_read_safe": True}
