"""A directive of Sphinx that runs commands while the site is built, and shows what they leave.

In the repository the block shows the commands alone::

    ```{run}
    mpiexec -n 4 python examples/ring.py
    ```

On the site, the source of the scripts that the commands name comes first, then what they print,
then the pictures and films (PNG and HTML files) that they write into the folder ``result``.
Commands run in an empty folder that has ``examples`` and ``docs`` in it, in the environment of
Sphinx. A command that fails is a warning, which ``-W`` makes an error. Results are kept beside the
site in ``runs``, and used again until a command, an example or mnpar changes.
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
FOLDER = "runs"


def fingerprint():
    """The digest of all Python files that a command can run."""
    digest = hashlib.sha256()
    for path in sorted(
        path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(commands, folder):
    """Run commands in a folder, and return their exit code; ``output.txt`` has what they print."""
    folder.mkdir(parents=True)
    for name in ("examples", "docs"):
        (folder / name).symlink_to(ROOT / name)
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (folder / "output.txt").write_text(done.stdout)
    for name in ("examples", "docs"):
        (folder / name).unlink()
    return done.returncode


class Run(SphinxDirective):
    """The directive ``{run}``."""

    has_content = True

    def run(self):
        commands = "\n".join(self.content)
        name = hashlib.sha256(
            (commands + self.env.app.fingerprint).encode()
        ).hexdigest()[:12]
        folder = Path(self.env.app.outdir) / FOLDER / name
        if not (folder / "output.txt").exists():
            shutil.rmtree(folder, ignore_errors=True)
            code = run(commands, folder)
            if code:
                text = (folder / "output.txt").read_text()
                (folder / "output.txt").unlink()
                message = "exit code %d of\n%s\n%s"
                logging.getLogger(__name__).warning(
                    message, code, commands, text, location=self.get_location()
                )
                return []
        for path in [
            self.env.doc2path(self.env.docname),
            *(ROOT / "examples").rglob("*.py"),
        ]:
            self.env.note_dependency(str(path))
        shown = [code_block(commands, "console")]
        for script in dict.fromkeys(
            re.findall(r"(?:examples|docs)/[\w/]+\.py", commands)
        ):
            shown += folded(script)
        text = (folder / "output.txt").read_text().rstrip()
        box = nodes.container(classes=["output", f"run-{name}"])
        if text:
            box += code_block(text, "text")
        up = "../" * self.env.docname.count("/")
        for path in sorted((folder / "result").rglob("*")):
            where = f"{up}{FOLDER}/{name}/{path.relative_to(folder)}"
            if path.suffix == ".png":
                box += raw(
                    f'<img src="{where}" alt="{path.stem}, drawn by the program" />'
                )
            elif path.suffix == ".html":
                box += raw(
                    f'<iframe class="film" src="{where}" title="{path.stem}"></iframe>'
                )
        return [*shown, box]


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
    app.add_directive("run", Run)
    app.connect("build-finished", forget_old_runs)
    return {"parallel_read_safe": True}
