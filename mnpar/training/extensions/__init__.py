"""Extensions of a trainer, called between updates: evaluation, reports, snapshots, changing
hyperparameters.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.training.extensions import snapshot_writers as snapshot_writers
    from mnpar.training.extensions.computational_graph import (
        DumpGraph as DumpGraph,
        dump_graph as dump_graph,
    )
    from mnpar.training.extensions.evaluator import Evaluator as Evaluator
    from mnpar.training.extensions.log_report import (
        LogReport as LogReport,
        PrintReport as PrintReport,
    )
    from mnpar.training.extensions.observing import (
        FailOnNonNumber as FailOnNonNumber,
        MicroAverage as MicroAverage,
        ParameterStatistics as ParameterStatistics,
        observe_lr as observe_lr,
        observe_value as observe_value,
        unchain_variables as unchain_variables,
    )
    from mnpar.training.extensions.plot_report import (
        PlotReport as PlotReport,
        VariableStatisticsPlot as VariableStatisticsPlot,
    )
    from mnpar.training.extensions.progress_bar import ProgressBar as ProgressBar
    from mnpar.training.extensions.shifts import (
        ExponentialShift as ExponentialShift,
        InverseShift as InverseShift,
        LinearShift as LinearShift,
        MultistepShift as MultistepShift,
        PolynomialShift as PolynomialShift,
        StepShift as StepShift,
        WarmupShift as WarmupShift,
    )
    from mnpar.training.extensions.snapshots import (
        snapshot as snapshot,
        snapshot_object as snapshot_object,
    )
    from mnpar.training.extensions.tensorboard_report import (
        TensorBoardReport as TensorBoardReport,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
