"""The base of link hooks that replace a link's weight, during its forward, by a function of the
weight.
"""

from __future__ import annotations

from typing import Any

from mnpar.configuration import no_backprop_mode
from mnpar.link import Link
from mnpar.link_hook import ForwardPostprocessCallbackArgs, ForwardPreprocessCallbackArgs, LinkHook
from mnpar.links import DeconvolutionND
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class Substitute(Variable):
    """A Variable that stands for a Parameter as a link's attribute; ``place`` is the Parameter or
    another Substitute for it.
    """

    __slots__ = ("parameter",)
    is_initialized = True

    def __init__(self, y: Variable, place: Any) -> None:
        self.array = y.array
        self.node = y.node
        self.parameter = parameter_of(place)


def parameter_of(place: Any) -> Parameter:
    """Return the Parameter that a link's attribute is, or that its Substitute stands for."""
    parameter: Parameter = place.parameter if isinstance(place, Substitute) else place
    return parameter


class SubstitutionHook(LinkHook):
    """A hook of one link that substitutes parameters before the link's forward; ``forward_failed``
    puts them back.

    Args:
        name: of the hook; None: that of its class.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None:
            self.name = name

    def __enter__(self) -> Any:
        raise NotImplementedError(
            f"{self.name} is one link's: link.add_hook(hook), not `with hook:`"
        )

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        self.forward_failed(args)


class WeightSubstitution(SubstitutionHook):
    """While a link's forward runs, its weight W is ``of(link, W)``; gradients flow back to W.

    Args:
        weight_name: the link's attribute with the parameter.
        name: of the hook; None: that of its class.
    """

    def __init__(self, weight_name: str, name: str | None) -> None:
        super().__init__(name)
        self.weight_name = weight_name

    def added(self, link: Link) -> None:
        if not isinstance(getattr(link, self.weight_name, None), Parameter):
            raise ValueError(
                f"{type(link).__name__} has no parameter {self.weight_name!r} for {self.name}"
            )
        self.axis = 1 if isinstance(link, DeconvolutionND) else 0

    def matrix(self, W: Any) -> Any:
        """Return the weight, an array or a Variable, as a matrix with a row for each output
        channel: (K, …) → (K, D).
        """
        if self.axis:
            W = W.transpose((1, 0, *range(2, W.ndim)))
        return W.reshape((W.shape[0], W.size // max(W.shape[0], 1)))

    def check(self, W: Parameter) -> None:
        """Raise ValueError if this rank holds a part of W with which :meth:`of` cannot be
        computed.
        """
        W.check_whole(self.name, "use a layer that is not divided")

    def of(self, link: Link, W: Variable) -> Variable:
        """Return the Variable with which the link computes in place of W; to be defined by each
        hook.
        """
        raise NotImplementedError

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        W = getattr(args.link, self.weight_name)
        if W.array is None:  # a forward of the first batch initializes it
            with no_backprop_mode():
                args.link.forward(*args.args, **args.kwargs)
        self.check(parameter_of(W))
        # in __dict__: setattr would remove the parameter from the link's list
        self.original_weight, args.link.__dict__[self.weight_name] = (
            W,
            Substitute(self.of(args.link, W), W),
        )

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        args.link.__dict__[self.weight_name] = self.original_weight
