"""Recurrent layers with other gates: peepholes, zoneout, the minimal gated unit."""

from __future__ import annotations

from typing import Any

from mnpar.chain import Chain
from mnpar.functions import concat, linear_interpolate, separate, sigmoid, tanh, zoneout
from mnpar.functions.array.shape import reshape
from mnpar.links.linear import Linear
from mnpar.links.recurrent import LSTM
from mnpar.links.stateful import Stateful
from mnpar.variable import Variable, as_variable


class StatefulZoneoutLSTM(LSTM):
    """An LSTM in which random elements of the cell state and of the output keep their last values
    (Krueger et al. 2016, arXiv 1606.01305).

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.
        c_ratio, h_ratio: the probabilities that an element of the cell state c, of the output h,
            keeps its last value.
        kwargs: initializers, as of :class:`LSTM`, but the biases of forget gates are 0 by default.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.StatefulZoneoutLSTM(3, 2)
        >>> layer(np.ones((4, 3), "f4")).shape, layer.c.shape
        ((4, 2), (4, 2))
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int | None = None,
        c_ratio: float = 0.5,
        h_ratio: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_size, out_size, **{"forget_bias_init": 0, **kwargs})
        self.c_ratio, self.h_ratio = c_ratio, h_ratio

    def forward(self, x: Any) -> Variable:
        """(N, D) → (N, H); N stays the same until ``reset_state``."""
        self.check_batch(x)
        c, h = self.step(self.c, self.h, x)
        before = c.xp.zeros(c.shape, c.dtype)
        self.c = zoneout(before if self.c is None else self.c, c, self.c_ratio)
        self.h = h = zoneout(before if self.h is None else self.h, h, self.h_ratio)
        return h


class StatefulPeepholeLSTM(Stateful):
    """An LSTM whose gates also depend on the cell state: i and f on the last one, o on the new one.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.StatefulPeepholeLSTM(3, 2)
        >>> layer(np.ones((4, 3), "f4")).shape, layer.c.shape
        ((4, 2), (4, 2))

    Source:
        Gers and Schmidhuber, "Recurrent nets that time and count", IJCNN 2000.
    """

    state_names = ("c", "h")

    def __init__(self, in_size: int | None, out_size: int) -> None:
        super().__init__()
        self.state_size = out_size
        self.upward = Linear(in_size, 4 * out_size)
        self.lateral = Linear(out_size, 4 * out_size, nobias=True)
        self.peep_i = Linear(out_size, out_size, nobias=True)
        self.peep_f = Linear(out_size, out_size, nobias=True)
        self.peep_o = Linear(out_size, out_size, nobias=True)
        self.reset_state()

    def forward(self, x: Any) -> Variable:
        """(N, D) → (N, H); N stays the same until ``reset_state``."""
        self.check_batch(x)
        gates = self.upward(x)
        if self.h is not None:
            gates = gates + self.lateral(self.h)
        if self.c is None:
            self.c = Variable(gates.xp.zeros((len(x), self.state_size), gates.dtype))
        a, i, f, o = separate(reshape(gates, (len(x), self.state_size, 4)), axis=2)
        self.c = (
            tanh(a) * sigmoid(i + self.peep_i(self.c)) + sigmoid(f + self.peep_f(self.c)) * self.c
        )
        self.h = sigmoid(o + self.peep_o(self.c)) * tanh(self.c)
        return self.h  # type: ignore[no-any-return]


class StatelessMGU(Chain):
    """One step of a minimal gated unit: f = σ(W_f [h, x]), h ← f tanh(W_h [f h, x]) + (1 - f) h.

    Args:
        n_inputs: D.
        n_units: H.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.StatelessMGU(3, 2)(np.zeros((4, 2), "f4"), np.ones((4, 3), "f4")).shape
        (4, 2)

    Source:
        Zhou et al., "Minimal gated unit for recurrent neural networks", arXiv 1603.09420.
    """

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__()
        self.state_size = n_units
        self.W_f = Linear(n_inputs + n_units, n_units)
        self.W_h = Linear(n_inputs + n_units, n_units)

    def step(self, h: Any, x: Any) -> Variable:
        """State, input → state."""
        f = sigmoid(self.W_f(concat((h, x), axis=1)))
        return linear_interpolate(f, tanh(self.W_h(concat((f * h, x), axis=1))), h)

    def forward(self, h: Any, x: Any) -> Variable:
        """(N, H), (N, D) → (N, H)."""
        return self.step(h, x)


class StatefulMGU(Stateful, StatelessMGU):
    """A minimal gated unit that keeps its state h from call to call.

    Args:
        in_size: D.
        out_size: H.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.StatefulMGU(3, 2)(np.ones((4, 3), "f4")).shape
        (4, 2)
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__(in_size, out_size)
        self.reset_state()

    def set_state(self, h: Any) -> None:
        """Set the state h, (N, H)."""
        self.h = as_variable(h)

    def forward(self, x: Any) -> Variable:  # type: ignore[override]
        """(N, D) → (N, H)."""
        x = as_variable(x)
        h = x.xp.zeros((len(x), self.state_size), x.dtype) if self.h is None else self.h
        self.h = self.step(h, x)
        return self.h  # type: ignore[no-any-return]
