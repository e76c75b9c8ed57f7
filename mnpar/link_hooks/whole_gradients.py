"""Gradients summed over ranks for replicated links that each rank applies to its part of the
data.
"""

from __future__ import annotations

from typing import Any

from mnpar.communicators.communicator import Communicator, require_communicator
from mnpar.configuration import no_backprop_mode
from mnpar.functions.divided.blocks import copy_all_to
from mnpar.link import Link
from mnpar.link_hook import ForwardPreprocessCallbackArgs
from mnpar.link_hooks.substitution import Substitute, SubstitutionHook
from mnpar.links.divided import Divided
from mnpar.parameter import Parameter

Places = list[tuple[dict[str, Any], str, Parameter]]


class WholeGradients(SubstitutionHook):
    """Sums the gradients of a link's parameters, and of the links inside it, over ranks that each
    call it with a part of the data: a block of the sequence, of the image, of the batch.

    Between layers with a ``sequence_axis`` (:class:`mnpar.links.ColumnParallelLinear`) norms,
    scales and biases see only a part of the sequence: without this hook each rank would get a part
    of their gradients, and the ranks' copies would drift apart. Add it to a link of which every
    rank has a copy (``link.add_hook(hook)``). Forward sends nothing; backward allreduces the
    gradients, small ones in one message. The hook leaves out links that are divided among these
    ranks, whose gradients are whole already, and links inside that have such a hook of their own.

    Args:
        comm: all its ranks call the link, equally often.
        name: of the hook; None: ``'WholeGradients'``.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     scale = L.Scale(axis=1, W_shape=(2,)).add_hook(
        ...         mnpar.link_hooks.WholeGradients(comm)
        ...     )
        ...     x = (
        ...         np.array([[1.0, 2.0]])
        ...         if comm.rank == 0
        ...         else np.array([[10.0, 20.0], [100.0, 200.0]])
        ...     )
        ...     F.sum(scale(x)).backward()
        ...     return scale.W.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [[111.0, 222.0], [111.0, 222.0]]
    """

    name = "WholeGradients"

    def __init__(self, comm: Communicator, *, name: str | None = None) -> None:
        require_communicator(comm, "WholeGradients(comm)")
        super().__init__(name)
        self.comm = self.gradient_comm = comm
        self._replaced: list[Places] = []  # a stack: calls may be nested

    def forward_preprocess(self, args: ForwardPreprocessCallbackArgs) -> None:
        places = self._places(args.link)
        # a forward of the first batch initializes them
        if any([param.array is None for _, _, param in places]):
            with no_backprop_mode():
                args.link.forward(*args.args, **args.kwargs)
        copies = copy_all_to(self.comm, *[param for _, _, param in places])
        self._replaced.append(places)
        for (owner, name, param), copy in zip(places, copies, strict=True):
            if copy is not param:
                # in __dict__: setattr would remove the parameter from the link's list
                owner[name] = Substitute(copy, param)

    def forward_failed(self, args: ForwardPreprocessCallbackArgs) -> None:
        for owner, name, param in self._replaced.pop():
            owner[name] = param

    def _places(self, link: Link) -> Places:
        """Return the parameters that are not divided, each with its link's ``__dict__`` and its
        name there.
        """
        found: Places = []
        for one in link.links():
            own = one is not link and any(
                [isinstance(hook, WholeGradients) for hook in one.local_link_hooks.values()]
            )
            if not (own or self._divides(one)):
                found += [(one.__dict__, name, one.__dict__[name]) for name in one._params]
        return found

    def _divides(self, link: Link) -> bool:
        """Return whether a link is divided among ranks of the communicator (others, of another
        axis, have the same part of it).
        """
        if not isinstance(link, Divided):
            return False
        comms = link.gradient_comms()
        here = self.comm.transport.world_ranks
        return any(
            [
                len([rank for rank in comm.transport.world_ranks if rank in here]) > 1
                for comm in (*comms.summed, *comms.partial)
            ]
        )
