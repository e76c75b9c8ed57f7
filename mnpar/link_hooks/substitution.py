"""What hooks share that let a link compute with something made of its weight in the weight's place."""

from __future__ import annotations

from typing import Any

from mnpar.config import no_backprop_mode
from mnpar.link_hook import ForwardPostprocessCallbackArgs, ForwardPreprocessCallbackArgs, LinkHook
from mnpar.links import DeconvolutionND
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class Substitute(Variable):
    """A Variable in a Parameter's place, or in that of another such Variable."""

    __slots__ = ("parameter",)
    is_initialized = True

    def __init__(self, y: Variable, place: Any) -> None:
        self.array, self.node, self.parameter = y.array, y.node, parameter_of(place)


def parameter_of(place: Any) -> Parameter:
    """The Parameter whose place it is."""
    parameter: Parameter = place.parameter if isinstance(place, Substitute) else place
    return parameter


class WeightSubstitution(LinkHook):
    """While a link's forward runs, its weight is what :meth:`of` makes of it; gradients go to the weight itself.

    Args:
        weight_name: of the parameter.
        name: of the hook; None: that of its class.
    """

    def __init__(self, weight_name: str, name: str | None) -> None:
        self.weight_name = weight_name
        if name is not None:
            self.name = name

    def __enter__(self) -> Any:
        raise NotImplementedError(f"{self.name} is one link's: link.add_hook(hook), not `with hook:`")

    def added(self, link: Any) -> None:
        if not isinstance(getattr(link, self.weight_name, None), Parameter):
            raise ValueError(f"{type(link).__name__} has no parameter {self.weight_name!r} for {self.name}")
        self.output_axis = 1 if isinstance(link, DeconvolutionND) else 0

    def matrix(self, W: Any) -> Any:
        """The weight, array or Variable, with a row for each output: (K, …) → (K, D)."""
        if self.output_axis:
            W = W.transpose((1, 0, *range(2, W.ndim)))
        return W.reshape((W.shape[0], W.size // max(W.shape[0], 1)))

    def check(self, W: Parameter) -> None:
        """Refuse a weight that :meth:`of` cannot be computed of."""
        W.check_whole(self.name, "use a layer that is not divided")

    def of(self, link: Any, W: Variable) -> Variable:
        """What the link is to compute with."""
        raise NotImplementedError

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        W = getattr(args.link, self.weight_name)
        if W.array is None:  # it waits for its first batch to know its shape
            with no_backprop_mode():
                args.link.forward(*args.args, **args.kwargs)
        self.check(parameter_of(W))
        # not by setattr, which would take the parameter off the link's list
        self.original_weight, args.link.__dict__[self.weight_name] = W, Substitute(self.of(args.link, W), W)

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        args.link.__dict__[self.weight_name] = self.original_weight

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        self.forward_failed(args)
