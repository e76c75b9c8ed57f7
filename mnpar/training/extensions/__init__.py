"""What a trainer calls between updates: evaluation, reports, snapshots, changing
hyperparameters.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.training.extensions import snapshot_writers
    from mnpar.training.extensions.computational_graph import DumpGraph, dump_graph
    from mnpar.training.extensions.evaluator import Evaluator
    from mnpar.training.extensions.log_report import LogReport, PrintReport
    from mnpar.training.extensions.observing import (
        FailOnNonNumber,
        MicroAverage,
        ParameterStatistics,
        observe_lr,
        observe_value,
        unchain_variables,
    )
    from mnpar.training.extensions.plot_report import PlotReport, VariableStatisticsPlot
    from mnpar.training.extensions.progress_bar import ProgressBar
    from mnpar.training.extensions.shifts import (
        ExponentialShift,
        InverseShift,
        LinearShift,
        MultistepShift,
        PolynomialShift,
        StepShift,
        WarmupShift,
    )
    from mnpar.training.extensions.snapshots import snapshot, snapshot_object
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "DumpGraph",
    "Evaluator",
    "ExponentialShift",
    "FailOnNonNumber",
    "InverseShift",
    "LinearShift",
    "LogReport",
    "MicroAverage",
    "MultistepShift",
    "ParameterStatistics",
    "PlotReport",
    "PolynomialShift",
    "PrintReport",
    "ProgressBar",
    "StepShift",
    "VariableStatisticsPlot",
    "WarmupShift",
    "dump_graph",
    "observe_lr",
    "observe_value",
    "snapshot",
    "snapshot_object",
    "snapshot_writers",
    "unchain_variables",
]
