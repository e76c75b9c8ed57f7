"""An extension that writes the graph of the first training step as a picture."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from typing import Any

from mnpar.computational_graph import build_computational_graph
from mnpar.configuration import config
from mnpar.errors import listed
from mnpar.serializer import AbstractSerializer
from mnpar.serializers.atomic import replacing_path
from mnpar.training.extension import Extension, keep
from mnpar.training.trainer import Trainer
from mnpar.variable import Variable


class DumpGraph(Extension):
    """Writes the graph of a reported Variable at the first iteration, for Graphviz, and as PNG if
    ``dot`` is installed.

    It sets ``mnpar.config.keep_graph_on_report`` until then.

    Args:
        root_name: the Variable's key in the observation, ``'main/loss'``.
        filename: in the trainer's folder. (``out_name`` is the same.) Where ranks train together,
            the default ``'cg.dot'`` is written by rank 0, any other by each rank that is given one.
        variable_style, function_style: see
            :func:`mnpar.computational_graph.build_computational_graph`; None: its default.

    Raises:
        KeyError, TypeError: when it is called: nothing of this name was observed, or it is no
            Variable.

    Example:
        >>> from mnpar.training import extensions
        >>> picture = extensions.DumpGraph("main/loss")  # trainer.extend(picture)
    """

    default_name = "dump_graph"

    def __init__(
        self,
        root_name: str,
        filename: str | None = None,
        variable_style: Mapping[str, str] | None = None,
        function_style: Mapping[str, str] | None = None,
        *,
        out_name: str = "cg.dot",
    ) -> None:
        self._root_name = root_name
        self._filename = out_name if filename is None else filename
        self._asked = self._filename != "cg.dot"
        self._styles: Any = {
            "variable_style": variable_style or "default",
            "function_style": function_style or "default",
        }
        self._original_flag: bool | None = None  # None: it has not been changed
        self._flag_called = False

    def initialize(self, trainer: Trainer) -> None:
        """Set ``config.keep_graph_on_report``."""
        if not self._flag_called:
            self._original_flag = config.keep_graph_on_report
            config.keep_graph_on_report = True

    def trigger(self, trainer: Trainer) -> bool:
        """Return whether this is the first iteration."""
        called, self._flag_called = self._flag_called, True
        return not called

    def __call__(self, trainer: Trainer) -> None:
        try:
            if self._asked or getattr(trainer, "speaks", True):
                self._write(trainer)
        finally:
            self.finalize()

    def _write(self, trainer: Trainer) -> None:
        observation = trainer.observation
        if self._root_name not in observation:
            raise KeyError(
                f"{self._root_name} was not observed; observed was "
                f"{listed(observation, none='nothing')}"
            )
        root = observation[self._root_name]
        if not isinstance(root, Variable):
            raise TypeError(
                f"a graph leads to a Variable; {self._root_name} is a {type(root).__name__}"
            )
        path = os.path.join(trainer.out, self._filename)
        with replacing_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(build_computational_graph([root], **self._styles).dump())
        dot = shutil.which("dot")
        if dot is not None:
            done = subprocess.run(
                [dot, "-Tpng", path, "-o", os.path.splitext(path)[0] + ".png"],
                capture_output=True,
                check=False,
            )
            if done.returncode:
                warnings.warn(
                    f"dot cannot draw {path}: {done.stderr.decode(errors='replace').strip()}",
                    stacklevel=2,
                )

    def finalize(self) -> None:
        """Reset ``config.keep_graph_on_report``."""
        if self._original_flag is not None:
            config.keep_graph_on_report, self._original_flag = self._original_flag, None

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load whether it was called."""
        self._flag_called = keep(serializer, "_flag_called", self._flag_called, bool)


dump_graph = DumpGraph  # its older name
