"""Whole gradients for the parameters of links that each rank uses for its share of the work."""

from __future__ import annotations

from typing import Any

from mnpar.communicators.communicator import Communicator, needed
from mnpar.config import no_backprop_mode
from mnpar.functions.blockwise import shared
from mnpar.link_hook import ForwardPostprocessCallbackArgs, ForwardPreprocessCallbackArgs, LinkHook
from mnpar.link_hooks.substitution import Substitute
from mnpar.links.parts import Divided
from mnpar.parameter import Parameter

Places = list[tuple[dict[str, Any], str, Parameter]]


class WholeGradients(LinkHook):
    """Lets all parameters of a link, and of the links in it, get their whole gradient on every rank, where each rank calls it
    with a part of what one process would: a block of the sequence, of the image, of the batch.

    Between layers with a ``sequence_axis`` (:class:`mnpar.links.ColumnParallelLinear`) norms, scales and biases see only a
    part of the sequence; without it their gradients would be parts too, and the ranks' copies would drift apart. It is to be
    added to a link, of which every rank has the same (``link.add_hook(hook)``): forward, nothing is sent; backward, the
    gradients are summed over ranks, small ones in one message. Links that are divided among these ranks make their own
    gradients whole: it leaves them alone, as it does links that have the hook themselves.

    Args:
        comm: all its ranks call the link, equally often.
        name: of the hook; None: ``'WholeGradients'``.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     scale = L.Scale(axis=1, W_shape=(2,)).add_hook(mnpar.link_hooks.WholeGradients(comm))
        ...     x = np.array([[1.0, 2.0]]) if comm.rank == 0 else np.array([[10.0, 20.0], [100.0, 200.0]])
        ...     F.sum(scale(x)).backward()
        ...     return scale.W.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [[111.0, 222.0], [111.0, 222.0]]
    """

    name = "WholeGradients"

    def __init__(self, comm: Communicator, *, name: str | None = None) -> None:
        needed(comm, "WholeGradients(comm)")
        self.comm = comm
        self._replaced: list[Places] = []  # of the calls under way
        if name is not None:
            self.name = name

    def __enter__(self) -> Any:
        raise NotImplementedError(f"{self.name} is one link's: link.add_hook(hook), not `with hook:`")

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        places = self._places(args.link)
        if any([param.array is None for _, _, param in places]):  # they wait for their first batch to know their shapes
            with no_backprop_mode():
                args.link.forward(*args.args, **args.kwargs)
        copies = shared(self.comm, *[param for _, _, param in places])
        self._replaced.append(places)
        for (owner, name, param), copy in zip(places, copies, strict=True):
            if copy is not param:
                owner[name] = Substitute(copy, param)  # not by setattr, which would take the parameter off the link's list

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        for owner, name, param in self._replaced.pop():
            owner[name] = param

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        self.forward_failed(args)

    def _places(self, link: Any) -> Places:
        """Where the parameters are that lie whole on every rank."""
        found: Places = []
        for one in link.links():
            own = one is not link and any([isinstance(hook, WholeGradients) for hook in one.local_link_hooks.values()])
            if not (own or self._divides(one)):
                found += [(one.__dict__, name, one.__dict__[name]) for name in one._params]
        return found

    def _divides(self, link: Any) -> bool:
        """Whether a link is divided among ranks of the communicator (others, of another axis, have the same part of it)."""
        if not isinstance(link, Divided):
            return False
        comms = [comm for comm in vars(link).values() if isinstance(comm, Communicator)]
        here = self.comm.transport.world_ranks
        return any([len([rank for rank in comm.transport.world_ranks if rank in here]) > 1 for comm in comms])
