"""The base of gradient-based optimizers: one update rule for each parameter, and hyperparameters
that the rules share.

An update has two halves: ``differentiate`` (backward) and ``step``. A multi-node optimizer reduces
gradients in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, TypeAlias, dataclass_transform

from mnpar.autograd.observer import observer
from mnpar.autograd.unclaimed import forget_unclaimed
from mnpar.communicators.threads.transport import claimant
from mnpar.errors import MnparError
from mnpar.link import Link
from mnpar.optimizers import fused_update
from mnpar.optimizers.flat_buffers import FlatBuffer, FlatBuffers
from mnpar.optimizers.hyperparameter import Hyperparameter, hyper, signature_of, signature_of_init
from mnpar.optimizers.loss_scaling import LossScaling
from mnpar.optimizers.model_holders import ModelHolders, is_due
from mnpar.optimizers.optimizer import Optimizer
from mnpar.optimizers.parameter_cache import ParameterCache
from mnpar.optimizers.untrained import (
    check_gradients,
    check_loss,
    has_communicated,
    warn_of_uncalled,
    warn_of_unregistered,
)
from mnpar.optimizers.update_rule import UpdateRule, in_float32, unscale
from mnpar.parameter import Parameter
from mnpar.serializer import AbstractSerializer
from mnpar.variable import backward

_ALONE = nullcontext()
# of gradients, as they arrive; None: all of a buffer
Pieces: TypeAlias = Iterable[tuple[FlatBuffer, slice | None, list[Parameter]]]


class Synchronizer(Protocol):
    """The protocol between an optimizer and the ranks that update with it:
    mnpar/parallel/data/sync.py.
    """

    comm: Any
    on_mesh: bool  # whether the model is on several ranks of a mesh
    keeps: bool  # whether this update's gradients are added to those of the updates before it

    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
        """Return this rank's loss, weighted so that the ranks' losses add up to the one to be
        minimized.
        """

    def watching(self) -> AbstractContextManager[None]:
        """Return a context around forward and backward, where ``on_mesh``."""

    def listen(self) -> None:
        """Let gradients leave during the backward that begins now."""

    def give_up(self) -> None:
        """Drop this update, whose backward failed."""

    def interrupt(self) -> None:
        """Note that a step failed, on this rank at least."""

    def reduce(self, by_pieces: Callable[[], bool]) -> bool | Pieces | None:
        """Add the ranks' gradients up after backward; return whether to step, or what to step with,
        or None: begin the step anew.
        """

    def stepping(self) -> AbstractContextManager[None]:
        """Return a context around a step."""

    def saving(self) -> AbstractContextManager[None]:
        """Return a context around saving and loading."""

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load what the next update needs of the last one."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which updates only add up gradients."""

    def join(self) -> None:
        """Take part in the updates of the ranks that still have samples."""


@dataclass_transform(field_specifiers=(hyper,))
class GradientMethod(Optimizer):
    """A gradient-based optimizer; subclasses define ``rule``, the class of each parameter's rule,
    and declare hyperparameters, which are then their arguments.

    Example:
        >>> import mnpar
        >>> class SignRule(mnpar.UpdateRule):
        ...     def update_core(self, param):
        ...         param.array -= self.hyperparam.lr * param.xp.sign(param.grad)
        >>> class SignSGD(mnpar.GradientMethod):
        ...     rule = SignRule
        ...     lr: float = mnpar.optimizers.hyper(default=0.1)
        >>> SignSGD(lr=0.2).setup(mnpar.links.Linear(2, 1)).lr
        0.2
    """

    rule: ClassVar[type[UpdateRule] | None] = None
    __signature__: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = cls.__init__ is GradientMethod.__init__
        cls.__signature__ = signature_of(cls) if declared else signature_of_init(cls)

    def __init__(self, *args: Any, **kwds: Any) -> None:
        super().__init__()
        self.hyperparam = Hyperparameter()
        self.hyperparam.belong(type(self))
        given = signature_of(type(self)).bind(*args, **kwds)
        given.apply_defaults()
        for name, value in given.arguments.items():
            setattr(self.hyperparam, name, value)
        self.buffers = FlatBuffers()
        self.owned = ParameterCache()  # the parameters of its target
        self._ruled: list[Parameter] = []  # those that have rules
        self._narrow: list[Parameter] = []  # those of them whose rules use float32 updates
        # whether ranks have copies of parameters, whose gradients are compared from time to time
        self._compares = False
        self._is_simple = True  # neither of both
        # the ranks that update together: mnpar.create_multi_node_optimizer
        self.sync: Synchronizer | None = None
        self._in_fp32 = False
        self._examined = False  # whether the first update was found to train something
        self._seal()
        self.hyperparam.belong(type(self), complete=self._sealed)

    def create_update_rule(self) -> UpdateRule:
        """Make the rule for one parameter, of ``rule`` unless a subclass defines it otherwise."""
        if self.rule is None:
            raise TypeError(
                f"{type(self).__name__} does not define rule, the class of its update rules"
            )
        return self.rule(self.hyperparam)

    def setup(self, link: Link) -> Any:
        """Give each parameter of a link an update rule; returns the optimizer."""
        super().setup(link)
        self._examined = False
        forget_unclaimed()
        for param in link.params():
            param.update_rule = self._new_rule()
        self.buffers.gather(self.members())
        return self

    def members(self) -> list[Parameter]:
        """Return the parameters of its target; the same list object as long as no parameter or
        array has been replaced.
        """
        return self.owned.of(self.target)

    def _new_rule(self) -> UpdateRule:
        rule = self.create_update_rule()
        if self._in_fp32:
            rule.use_fp32_update()
        return rule

    def use_fp32_update(self, flag: bool = True) -> None:
        """Let float16 parameters be updated in float32, by a copy that each rule keeps; before
        ``setup`` or after it.

        During a step such a parameter is its float32 copy: hooks see that, and its gradient in
        float32.

        Example:
            >>> import numpy as np, mnpar
            >>> model = mnpar.Link(w=2)
            >>> model.w = mnpar.Parameter(np.ones(2, "f2"))
            >>> optimizer = mnpar.optimizers.SGD(lr=1e-4).setup(model)
            >>> optimizer.use_fp32_update()
            >>> for _ in range(100):
            ...     model.w.grad = np.ones(2, "f2")
            ...     optimizer.update()
            >>> model.w.array
            array([0.99, 0.99], dtype=float16)
        """
        self._in_fp32 = flag
        for param in () if self.target is None else self.target.params():
            if param.update_rule is not None:
                param.update_rule.use_fp32_update(flag)

    def _find_holders(self) -> ModelHolders:
        self._require_target("holders")
        copies = None if self.sync is None else self.sync.comm
        return ModelHolders.of(self.target, copies, self._holders)

    def use_cleargrads(self, use: bool = True) -> None:
        """Chainer's; without effect, as gradients are always cleared before backward."""

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """Take one step.

        Args:
            lossfun: called with the other arguments; its loss is differentiated first. A rank that
                has no loss returns None (or what ``send`` or ``pseudo_connect`` returned): it takes
                part in the backward of the others. None: use the gradients that the parameters
                have.

        A parameter without a gradient is not changed; no parameter is where :meth:`loss_scaling`
        finds an overflow.

        Raises:
            RuntimeError: ``setup`` was not called; TypeError: ``lossfun`` is no function, or
                returned no loss.
        """
        self._require_target("update")
        if lossfun is not None:
            self._require_function(lossfun)
            with self.sync.watching() if self.sync is not None and self.sync.on_mesh else _ALONE:
                loss = (
                    lossfun(*args, **kwds)
                    if self.sync is None
                    else self.sync.loss(lossfun, args, kwds)
                )
                try:
                    self.differentiate(loss)
                except BaseException:
                    if self.sync is not None:
                        self.sync.give_up()
                    raise
        elif not self._examined:
            self._examined = self.sync is not None or check_gradients(self.target, self.t)
        self.step()

    def step(self) -> None:
        """Change the parameters by their gradients: the second half of an update."""
        self._require_target("step")
        if self._claimed != claimant.get():
            self._claim()
        params = self.members()
        if params is not self._ruled:
            params = self._give_rules(params)
        self.buffers.gather(params)
        if self.sync is None and self._is_simple:
            self._change(params)
        elif self._change_together(params) is None:
            self.step()
            return
        watching = observer()
        if watching is not None:
            watching.stepped(self)

    def _change_together(self, params: list[Parameter]) -> bool | Pieces | None:
        """:meth:`_step_together`; tell the other ranks if it fails here."""
        try:
            return self._step_together(params)
        except MnparError:  # all ranks hear of it
            raise
        except BaseException:
            if self.sync is not None:
                self.sync.interrupt()
            raise

    def _step_together(self, params: list[Parameter]) -> bool | Pieces | None:
        """Take a step with the gradients of all ranks, or with float32 copies of parameters. Return
        None if the step must start again.
        """
        steps = True if self.sync is None else self.sync.reduce(self._takes_pieces)
        if self.sync is None and self._compares and is_due(self.t):
            self.holders.compare_copies(f"update {self.t + 1}")
        if steps is True:
            with _ALONE if self.sync is None else self.sync.stepping(), in_float32(self._narrow):
                self._change(params)
        elif steps is not False and steps is not None:
            self._change_by(steps)
        return steps

    def _give_rules(self, params: list[Parameter]) -> list[Parameter]:
        """Give rules to the parameters that came since setup. Return the list of all, which is a
        new one if any did.
        """
        for param in params:
            if param.update_rule is None:
                param.update_rule = self._new_rule()
        if not self.t:
            warn_of_unregistered(self.target)
            warn_of_uncalled(self.target)
        self._ruled = params = self.members()
        self._narrow = [param for param in params if param.update_rule.in_fp32]
        # (with this rules of divided parameters know the ranks that have the other parts)
        in_step = self.holders.in_step
        self._compares = bool(in_step) and self.sync is None
        self._is_simple = not (self._narrow or self._compares)
        return params

    def _takes_pieces(self) -> bool:
        """Return whether parts of the buffers can be updated as their gradients arrive; if so,
        prepare the buffers for it.
        """
        hooked = self._hooks and any([timing == "pre" for timing, _ in self._hooks.values()])
        hindered = hooked or self._scaling is not None or self.buffers.aliased
        return not hindered and all(map(fused_update.prepare, self.buffers.learning))

    def _change_by(self, pieces: Pieces) -> None:
        """Take a step with gradients that are still arriving."""
        self.t += 1
        for buffer, place, params in pieces:
            for param in params:
                if param.node.loss_scale is not None:
                    unscale(param)
            buffer.fused_update.step(place)
        for buffer in self.buffers.learning:
            buffer.fused_update.end(buffer)
        if self._hooks:
            self.call_hooks("post")

    def _accepted(self, scaling: LossScaling) -> bool:
        """Return whether loss scaling lets the step be taken."""
        accepted = scaling.accept(self._gradients(), self.holders)
        self._scale_by(scaling.scale)
        return accepted

    def _change(self, params: list[Any]) -> None:
        """Unscale gradients, call hooks and update the parameters, unless loss scaling finds an
        overflow.
        """
        for param in params:
            if param.node.loss_scale is not None:
                unscale(param)
        if self._scaling is not None and not self._accepted(self._scaling):
            return
        if self._hooks:
            self.call_hooks("pre")
        self.t += 1
        fused_update.update(params, self.buffers)
        if self._hooks and not self.in_pieces:
            self.call_hooks("post")

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load its counts and rules' states; where states are in shards, all ranks call it,
        and each has them whole.
        """
        self._require_target("serialize")
        # a link that was sized by loading may have parameters that setup did not see
        self._give_rules(self.members())
        with nullcontext() if self.sync is None else self.sync.saving():
            super().serialize(serializer)
        if self.sync is not None:
            self.sync.serialize(serializer)

    def differentiate(self, loss: Any) -> None:
        """Backpropagate from a loss, None on ranks without one: the first half of an update."""
        if self.sync is None or not self.sync.keeps:
            self.owned.cleargrads(self.target)
        if not (loss is None or hasattr(loss, "backward")):
            raise TypeError(
                f"the loss function returned a {type(loss).__name__}: return a Variable, or "
                "None on a rank without a loss"
            )
        if self.sync is not None:
            self.sync.listen()
        joint = not self._examined and has_communicated()
        # without a loss too, the gradients that come from other ranks are scaled
        (backward if loss is None else loss.backward)(loss_scale=self._loss_scale)
        if not self._examined:
            self._examined = True
            if self.sync is None:
                check_loss(self.target, loss, joint)

    def no_sync(self) -> AbstractContextManager[None]:
        """Add up gradients inside a ``with`` block: its updates take no step; the next one outside
        takes one for all samples.

        Raises:
            RuntimeError: this is no multi-node optimizer
                (:func:`mnpar.create_multi_node_optimizer`).
        """
        return self._require_sync("no_sync").no_sync()

    def join(self) -> None:
        """Take part in the updates of ranks that have more samples, after this rank's last one; all
        ranks call it in the end.

        Raises:
            RuntimeError: this is no multi-node optimizer
                (:func:`mnpar.create_multi_node_optimizer`).
        """
        self._require_sync("join").join()

    def _require_sync(self, what: str) -> Synchronizer:
        if self.sync is None:
            raise RuntimeError(
                f"{what} is for optimizers of several ranks: mnpar.create_multi_node_optimizer "
                "makes them"
            )
        return self.sync
