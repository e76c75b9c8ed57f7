"""The base of all optimizers: a target, counts of updates and epochs, loss scaling, hooks before
and after each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnpar import hints
from mnpar.communicators.threads.transport import claim, claimant
from mnpar.errors import refuse_class
from mnpar.link import Link
from mnpar.optimizers.hyperparameter import check_arguments, declared, unknown_attribute
from mnpar.optimizers.loss_scaling import LossScaling
from mnpar.optimizers.model_holders import ModelHolders
from mnpar.optimizers.update_rule import add_hook
from mnpar.parameter import Parameter, structure
from mnpar.runtime.malloc import keep_memory
from mnpar.serializer import AbstractSerializer, placed

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


@hints.with_hints(hints.OPTIMIZER)
class Optimizer:
    """Changes the parameters of a link by their gradients.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> model = L.Linear(2, 1, initialW=0)
        >>> optimizer = mnpar.optimizers.SGD(lr=1.0).setup(model)
        >>> optimizer.update(lambda x: F.sum(model(x)), np.ones((1, 2), "f4"))
        >>> model.W.array
        array([[-1., -1.]], dtype=float32)
    """

    def __new__(cls, *args: Any, **kwds: Any) -> Any:
        """Answer a name that ``__init__`` does not take with those that it takes."""
        check_arguments(cls, kwds)
        return super().__new__(cls)

    def __init__(self) -> None:
        self.t = 0  # updates so far
        self.epoch = 0
        self.target: Any = None
        # whether parameters are in pieces during a step: hooks after it are called when they are
        # whole
        self.in_pieces = False
        # who holds the model, as it was known at last
        self._holders: ModelHolders | None = None
        self._claimed = 0  # the thread rank that uses it
        self._loss_scale: float | None = None
        self._scaling: LossScaling | None = None
        self._hooks: dict[str, tuple[str, Callable[..., None]]] = {}

    # whether attributes of other names are refused
    _sealed = False

    def _seal(self) -> None:
        """Refuse other attributes from now on, if the class is mnpar's: nothing would read them.
        Users' classes have attributes of their own.
        """
        self._sealed = type(self).__module__.startswith("mnpar.")

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed and name not in self.__dict__ and not hasattr(type(self), name):
            kind = type(self)
            message = unknown_attribute(kind.__name__, kind.__name__, name, declared(kind))
            raise AttributeError(message, name=name, obj=self)
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        _, _, numbers = str(getattr(self, "hyperparam", "()")).partition("(")
        return f"{type(self).__name__}({numbers}"

    def setup(self, link: Link) -> Any:
        """Set the link whose parameters are updated; returns the optimizer.

        Raises:
            TypeError: ``link`` is not a Link.
            RuntimeError: another thread rank has an optimizer for the link.
        """
        if not isinstance(link, Link):
            refuse_class(link, "an optimizer is set up for a link")
            raise TypeError(
                f"an optimizer is set up for a link, not for {type(link).__name__}: setup(model)"
            )
        self.target = link
        keep_memory()  # each step takes and frees the same arrays
        self._claim()
        self.t = self.epoch = 0
        return self

    def _claim(self) -> None:
        """Note that this thread rank updates the optimizer and its links; RuntimeError if another
        one does.
        """
        self._claimed = claimant.get()
        for one in (self, *self.target.links()):
            claim(one)

    def _require_target(self, what: str) -> None:
        if self.target is None:
            raise RuntimeError(f"{type(self).__name__}: call setup(link) before {what}")

    def _require_function(self, lossfun: Any) -> None:
        if not callable(lossfun):
            raise TypeError(
                "update takes the function that returns the loss, and its arguments, not a "
                f"{type(lossfun).__name__}: "
                "update(model, x, t); or, after model.cleargrads() and loss.backward(), "
                "update() without arguments"
            )

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """Take one step; each kind of optimizer defines it."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def new_epoch(self, auto: bool = False) -> None:
        """Count an epoch."""
        self.epoch += 1

    def set_loss_scale(self, loss_scale: float | None) -> None:
        """Multiply losses by this before backward, so that float16 gradients do not vanish, and
        divide it out of gradients.

        Hooks see the gradients with the scale divided out. None: no scale.

        Raises:
            ValueError: the scale is not positive.
        """
        if loss_scale is not None and not loss_scale > 0:
            raise ValueError(f"a loss scale is a positive number, or None, not {loss_scale}")
        self._scale_by(loss_scale)
        self._scaling = None

    @property
    def loss_scale(self) -> float | None:
        """The factor by which losses are multiplied now; None: 1."""
        return self._loss_scale

    @property
    def skips_overflows(self) -> bool:
        """Return whether :meth:`loss_scaling` skips steps whose gradients are not finite."""
        return self._scaling is not None

    def _scale_by(self, scale: float | None) -> None:
        if scale != self._loss_scale:
            self._loss_scale = scale
            structure.tune()

    def loss_scaling(
        self, interval: int = 1000, scale: float | None = None, comm: Any = None
    ) -> None:
        """Scale losses, and skip steps whose gradients are not finite: parameters do not change,
        and no hook is called.

        Args:
            interval: steps without an overflow after which the scale is doubled; it is halved at
                each overflow.
            scale: a fixed scale; None: a dynamic one, which starts from 1 and is doubled at each
                step until the first overflow.
            comm: ranks that decide together whether to skip a step; all of them update. None:
                those that hold the model together, as links, the mesh and the multi-node optimizer
                know them.

        Raises:
            ValueError: the scale is not positive, or the interval is less than 1.
            RuntimeError: in an update without ``comm``: backward sent gradients to ranks of which
                no link says that they hold the model; they would be of another scale there.

        Example:
            >>> import mnpar, mnpar.functions as F, mnpar.links as L
            >>> import numpy as np
            >>> model = L.Linear(2, 1)
            >>> optimizer = mnpar.optimizers.SGD().setup(model)
            >>> optimizer.loss_scaling()
            >>> optimizer.update(lambda: F.sum(model(np.ones((1, 2), "f4"))))
        """
        if scale is None and interval < 1:
            raise ValueError(
                f"the loss scale is doubled after an interval of 1 step or more, not of {interval}"
            )
        self._scaling = (
            LossScaling(interval, comm=comm) if scale is None else LossScaling(0, scale, comm)
        )
        self._scale_by(self._scaling.scale)

    @property
    def holders(self) -> ModelHolders:
        """Return what is known of the ranks that hold the model."""
        held = self._holders
        if held is None or not (held.on_mesh or held.seen is structure.now):
            self._holders = held = self._find_holders()
        return held

    def hold(self, holders: ModelHolders) -> None:
        """Take it from a mesh who holds the model."""
        self._holders = holders

    def _find_holders(self) -> ModelHolders:
        self._require_target("holders")
        return ModelHolders.of(self.target, None, self._holders)

    def sum_over_model(
        self,
        function: Callable[[Parameter], Any],
        comm: Communicator | None = None,
        who: str = "sum_over_model",
        settings: tuple[float, ...] = (),
    ) -> float:
        """Return the sum of a number over all parameters of the model, whichever ranks have them:
        each element of the model counts once.

        For hooks that need a number of the whole model, such as a norm. Where ranks hold the model
        together (stages, parts of layers, experts, members of an ensemble, shards of states), all
        of them call it during an update, and get the same; on one rank it is a sum over the
        parameters of the target.

        Args:
            function: called with each parameter that has an array; returns a number, or an array of
                one on any device. For a part of a parameter it returns the part's number; those of
                all parts add up to that of the whole. For copies it returns the same.
            comm: the ranks that hold the model together, where no link says so: each has parameters
                of its own, except for what links or boxes say. None: those that links, the mesh
                and the multi-node optimizer know.
            who: the name of what needs the number, for errors.
            settings: numbers that all of these ranks must have alike, such as a threshold.

        Raises:
            MismatchError: copies of a parameter give different numbers, or ranks have other
                settings; on all ranks. Or the ranks
                that hold the model cannot be reached by the communicators that links know.
            RuntimeError: without ``comm``, the last backward sent gradients to ranks of which no
                link says that they hold the model.
            ValueError: ``comm`` lacks ranks that hold the model; or the ranks with the other parts
                of a divided parameter are not known.

        Example:
            >>> import numpy as np, mnpar
            >>> import mnpar.functions as F, mnpar.links as L
            >>> def program(comm):
            ...     model = L.ColumnParallelLinear(comm, 2, 8, nobias=True)
            ...     norms = []
            ...
            ...     def norm(optimizer):
            ...         square = lambda param: float((param.grad**2).sum())
            ...         norms.append(optimizer.sum_over_model(square) ** 0.5)
            ...
            ...     optimizer = mnpar.optimizers.SGD().setup(model)
            ...     optimizer.add_hook(norm)
            ...     optimizer.update(lambda: F.sum(model(np.ones((1, 2), "f4"))))
            ...     return norms
            >>> mnpar.run(program, ranks=2)
            [[4.0], [4.0]]
        """
        return self.holders.total(function, comm, who, settings)

    def is_safe_to_update(self) -> bool:
        """Return whether all gradients of this rank are finite."""
        return LossScaling(0, 1.0).accept(self._gradients())

    def _gradients(self) -> list[Any]:
        return [
            param.grad
            for param in self.target.params(include_uninit=False)
            if param.grad is not None
        ]

    def add_hook(
        self, hook: Callable[..., None], name: str | None = None, timing: str = "auto"
    ) -> None:
        """Call a function at each step.

        Args:
            hook: called with the optimizer or, if its attribute ``call_for_each_param`` is true,
                with each parameter that has a gradient: ``hook(rule, param)``. What it needs of
                the whole model is :meth:`sum_over_model`, and of a whole parameter
                :meth:`mnpar.Parameter.sum_over_parts`; ``hook.begin(optimizer)``, if there is such
                a method, is called before the first parameter.
                :mod:`mnpar.optimizers.hooks` has the usual ones.
            name: to remove it by; by default ``hook.name``, or the function's name.
            timing: ``'pre'``: before the parameters change; ``'post'``: after; ``'auto'``: what
                ``hook.timing`` says, else pre.

        Raises:
            KeyError: there is a hook of this name; ValueError: no such timing; TypeError: it cannot
                be called.
        """
        add_hook(self._hooks, hook, name, timing)
        structure.tune()

    def remove_hook(self, name: str) -> None:
        """Remove a hook; KeyError if there is none of this name."""
        del self._hooks[name]
        structure.tune()

    @property
    def hooks(self) -> list[Callable[..., None]]:
        """The hooks, in the order in which they were added."""
        return [hook for _, hook in self._hooks.values()]

    def call_hooks(self, timing: str = "pre") -> None:
        """Call the hooks of a timing."""
        for when, hook in self._hooks.values():
            if when != timing:
                continue
            if getattr(hook, "call_for_each_param", False):
                if begin := getattr(hook, "begin", None):
                    begin(self)
                for param in self.target.params():
                    if param.grad is not None:
                        hook(param.update_rule, param)
            else:
                hook(self)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the counts, each rule's state under the path of its parameter, and the
        states of hooks.

        Raises:
            RuntimeError: ``setup`` was not called: there are no rules yet.
        """
        self._require_target("serialize")
        self.t = int(serializer("t", self.t))
        self.epoch = int(serializer("epoch", self.epoch))
        if self._scaling is not None:
            self._scaling.serialize(serializer["loss_scaling"])
            self._scale_by(self._scaling.scale)
        for param, part in self.target.filed_params(serializer):
            rule = param.update_rule
            if rule is not None:
                if param.is_initialized:
                    rule.prepare(param)
                rule.serialize(placed(part, param))
        for name, (_, hook) in self._hooks.items():
            if hasattr(hook, "serialize"):
                hook.serialize(serializer["hooks"][name])
