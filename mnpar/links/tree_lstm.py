"""Tree-structured LSTMs: the state of a node is computed from the states of its children and its
input.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.functions import sigmoid, tanh, tree_lstm
from mnpar.links.linear import Linear
from mnpar.variable import Variable, as_variable


def _family(
    name: str, inputs: tuple[Variable | Array, ...], state_size: int, n_ary: int | None = None
) -> tuple[list[Variable | Array], list[Variable | Array], Variable | Array]:
    """Return the children's cell states and outputs, and the input; a state that is None becomes
    zeros.
    """
    *states, x = inputs
    n = len(states) // 2
    if len(states) % 2 or (n_ary is not None and n != n_ary):
        wanted = "as many" if n_ary is None else f"{n_ary}"
        raise ValueError(
            f"{name} takes memories, {wanted} outputs and an input, not {len(inputs)} arguments"
        )
    x = as_variable(x)
    zeros = x.xp.zeros((len(x), state_size), x.dtype)
    states = [zeros if s is None else s for s in states]
    return states[:n], states[n:], x


class ChildSumTreeLSTM(Chain):
    """An LSTM over a tree whose nodes have any number of children: their outputs are summed, each
    has a forget gate of its own.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> c = h = np.zeros((4, 2), "f4")
        >>> c, h = L.ChildSumTreeLSTM(3, 2)(c, c, c, h, h, h, np.ones((4, 3), "f4"))
        >>> c.shape, h.shape
        ((4, 2), (4, 2))

    Source:
        Tai, Socher and Manning, "Improved semantic representations from tree-structured LSTM
        networks", ACL 2015.
    """

    def __init__(self, in_size: int | None, out_size: int) -> None:
        super().__init__()
        self.in_size, self.state_size = in_size, out_size
        self.W_x = Linear(in_size, 4 * out_size)
        self.W_h_aio = Linear(out_size, 3 * out_size, nobias=True)
        self.W_h_f = Linear(out_size, out_size, nobias=True)

    def forward(self, *cshsx: Variable | Array) -> tuple[Variable, Variable]:
        """Map the memories of the children (N, H), their outputs (N, H), the input (N, D) to
        memory and output (N, H).

        A leaf has the input alone; a state that is None is zeros.

        Raises:
            ValueError: not as many outputs as memories.
        """
        cs, hs, x = _family("ChildSumTreeLSTM", cshsx, self.state_size)
        H, gates = self.state_size, self.W_x(x)
        aio = gates[:, : 3 * H]
        f = gates[:, 3 * H :]
        if hs:
            aio = aio + self.W_h_aio(reduce(add, hs))
        a, i, o = [aio[:, k * H : (k + 1) * H] for k in range(3)]
        c: Variable = tanh(a) * sigmoid(i)
        for before, h in zip(cs, hs, strict=True):
            c = c + sigmoid(f + self.W_h_f(h)) * before
        return c, sigmoid(o) * tanh(c)


class NaryTreeLSTM(Chain):
    """An LSTM over a tree whose nodes have a fixed number of children, each with weights of its
    own.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.
        n_ary: the number of children.

    Raises:
        ValueError: no children.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> c = h = np.zeros((4, 2), "f4")
        >>> c, h = L.NaryTreeLSTM(3, 2)(c, c, h, h, np.ones((4, 3), "f4"))
        >>> c.shape, h.shape
        ((4, 2), (4, 2))

    Source:
        As :class:`ChildSumTreeLSTM`.
    """

    def __init__(self, in_size: int | None, out_size: int, n_ary: int = 2) -> None:
        super().__init__()
        if n_ary < 1:
            raise ValueError(f"NaryTreeLSTM: n_ary = {n_ary} is not 1 or more")
        self.in_size, self.state_size, self.n_ary = in_size, out_size, n_ary
        self.W_x = Linear(in_size, (3 + n_ary) * out_size)
        for i in range(1, n_ary + 1):
            self.add_link(f"W_h{i}", Linear(out_size, (3 + n_ary) * out_size, nobias=True))

    def forward(self, *cshsx: Variable | Array) -> tuple[Variable, Variable]:
        """Map the memories of the children (N, H), their outputs (N, H), the input (N, D) to
        memory and output (N, H).

        A state that is None is zeros.

        Raises:
            ValueError: not ``n_ary`` memories and outputs.
        """
        cs, hs, x = _family("NaryTreeLSTM", cshsx, self.state_size, self.n_ary)
        gates = reduce(add, [self[f"W_h{i}"](h) for i, h in enumerate(hs, 1)], self.W_x(x))
        return tree_lstm(*cs, gates)
