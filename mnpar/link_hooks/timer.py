"""A hook that measures how long links take."""

from __future__ import annotations

from mnpar import backend
from mnpar.function_hooks.timer import Timings
from mnpar.link_hook import ForwardPostprocessCallbackArgs, ForwardPreprocessCallbackArgs, LinkHook


class TimerHook(Timings, LinkHook):
    """Measures each forward of links; on GPUs it synchronizes before and after. A link's time
    includes the links inside it.

    ``call_history`` is a list of pairs (name of the link's class, seconds); :meth:`total_time`,
    :meth:`summary` and :meth:`print_report` add them up.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> model = mnpar.Sequential(L.Linear(2, 3), L.Linear(3, 1))
        >>> with mnpar.link_hooks.TimerHook() as timer:
        ...     y = model(np.ones((4, 2), "f4"))
        >>> [name for name, _ in timer.call_history]
        ['Linear', 'Linear', 'Sequential']
    """

    name = "TimerHook"
    title = "LinkName"

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        backend.synchronize(*args.args)
        self._begin(id(args.link))

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        backend.synchronize(*args.args)
        self._end(id(args.link), type(args.link).__name__)

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        self._drop(id(args.link))
