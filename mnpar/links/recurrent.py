"""Recurrent layers that compute one step at a time: LSTM, GRU and their relatives with other gates
(peepholes, zoneout, the minimal gated unit), with or without a state of their own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from mnpar import initializers
from mnpar.backend import Array
from mnpar.chain import Chain
from mnpar.functions import (
    concat,
    get_item,
    linear_interpolate,
    lstm,
    separate,
    sigmoid,
    tanh,
    zoneout,
)
from mnpar.functions.array.shape import reshape
from mnpar.initializers.initializer import InitialValue
from mnpar.links.linear import Linear
from mnpar.variable import Variable, as_variable


class _ByGate:
    """An initializer for the weights of four gates (4H, D) that fills them as four matrices (H, D)
    with fans of their own.

    An array may be that of all (4H, D).
    """

    def __init__(self, initializer: InitialValue) -> None:
        self.initializer = initializers._get_initializer(initializer)
        self.dtype = getattr(self.initializer, "dtype", None)

    def __call__(self, array: Array) -> None:
        """Fill ``array``."""
        whole = getattr(getattr(self.initializer, "fill_value", None), "shape", ()) == array.shape
        for block in (array,) if whole else array.reshape(4, -1, array.shape[1]):
            self.initializer(block)


class _GateBiases:
    """An initializer for biases (4H,), those of the gates a, i, f, o of each unit, of which f is
    the gate that forgets.
    """

    def __init__(self, bias_init: InitialValue, forget_bias_init: InitialValue) -> None:
        self.rest = initializers._get_initializer(bias_init, 0)
        self.forget = initializers._get_initializer(forget_bias_init, 1)
        self.dtype = getattr(self.rest, "dtype", None)

    def __call__(self, array: Array) -> None:
        """Fill ``array``."""
        gates = array.reshape(1, -1, 4, 1)
        for gate, initializer in enumerate((self.rest, self.rest, self.forget, self.rest)):
            initializer(gates[:, :, gate])  # (1, H, 1), of which fans can be computed


class _Gates(Chain):
    """The weights of an LSTM's gates: for the input, with the bias, and for the last output."""

    def __init__(
        self,
        in_size: int | None,
        out_size: int | None = None,
        lateral_init: InitialValue = None,
        upward_init: InitialValue = None,
        bias_init: InitialValue = None,
        forget_bias_init: InitialValue = None,
    ) -> None:
        super().__init__()
        if out_size is None:
            in_size, out_size = None, in_size
        if out_size is None or out_size < 1:
            raise ValueError(
                f"{type(self).__name__}({in_size}, {out_size}): sizes must be 1 or more"
            )
        self.state_size = out_size
        self.upward = Linear(
            in_size,
            4 * out_size,
            False,
            _ByGate(upward_init),
            _GateBiases(bias_init, forget_bias_init),
        )
        self.lateral = Linear(out_size, 4 * out_size, nobias=True, initialW=_ByGate(lateral_init))

    def step(
        self, c: Variable | Array | None, h: Variable | Array | None, x: Variable | Array
    ) -> tuple[Variable, Variable]:
        """(c, h, x) → (c, h): cell state and output of the last step (None: zeros), input → those
        of this step.
        """
        x = as_variable(x)
        gates = self.upward(x)
        if h is not None:
            gates = gates + self.lateral(h if len(h) == len(x) else get_item(h, slice(0, len(x))))
        if c is None:
            c = x.xp.zeros((len(x), self.state_size), gates.dtype)
        return lstm(c, gates)


class StatelessLSTM(_Gates):
    """One step of an LSTM, with cell state and output of the last step as arguments.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.
        lateral_init, upward_init, bias_init, forget_bias_init: initializers; biases of forget gates
            are 1 by default.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> c, h = L.StatelessLSTM(3, 2)(None, None, np.ones((4, 3), "f4"))
        >>> c.shape, h.shape
        ((4, 2), (4, 2))
    """

    def forward(
        self, c: Variable | Array | None, h: Variable | Array | None, x: Variable | Array
    ) -> tuple[Variable, Variable]:
        """(N, H) or None, (N, H) or None, (N, D) → (N, H), (N, H)."""
        return self.step(c, h, x)


class StatelessGRU(Chain):
    """One step of a gated recurrent unit, with the state as an argument.

    r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), h̄ = tanh(W x + U (r h)), h ← (1 − z) h + z h̄ (Cho
    et al. 2014, arXiv 1406.1078).

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.
        init, inner_init, bias_init: initializers of the W, the U, and all biases.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.StatelessGRU(3, 2)(None, np.ones((4, 3), "f4")).shape
        (4, 2)
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        init: InitialValue = None,
        inner_init: InitialValue = None,
        bias_init: InitialValue = None,
    ) -> None:
        super().__init__()
        self.out_size = out_size
        self.W_r = Linear(in_size, out_size, initialW=init, initial_bias=bias_init)
        self.U_r = Linear(out_size, out_size, initialW=inner_init, initial_bias=bias_init)
        self.W_z = Linear(in_size, out_size, initialW=init, initial_bias=bias_init)
        self.U_z = Linear(out_size, out_size, initialW=inner_init, initial_bias=bias_init)
        self.W = Linear(in_size, out_size, initialW=init, initial_bias=bias_init)
        self.U = Linear(out_size, out_size, initialW=inner_init, initial_bias=bias_init)

    def step(self, h: Variable | Array | None, x: Variable | Array) -> Variable:
        """State or None, input → state."""
        new: Variable
        if h is None:
            new = sigmoid(self.W_z(x)) * tanh(self.W(x))
            return new
        r = sigmoid(self.W_r(x) + self.U_r(h))
        z = sigmoid(self.W_z(x) + self.U_z(h))
        new = as_variable(h) + z * (tanh(self.W(x) + self.U(r * h)) - h)
        return new

    def forward(self, h: Variable | Array | None, x: Variable | Array) -> Variable:
        """(N, H) or None, (N, D) → (N, H)."""
        return self.step(h, x)


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

    def step(self, h: Variable | Array, x: Variable | Array) -> Variable:
        """State, input → state."""
        f = sigmoid(self.W_f(concat((h, x), axis=1)))
        return linear_interpolate(f, tanh(self.W_h(concat((f * h, x), axis=1))), h)

    def forward(self, h: Variable | Array, x: Variable | Array) -> Variable:
        """(N, H), (N, D) → (N, H)."""
        return self.step(h, x)


class Stateful(Chain):
    """A chain whose state is in the attributes that ``state_names`` names: Variables (N, H), or
    None before the first call.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h",)
    c: Any = None
    h: Any = None

    def reset_state(self) -> None:
        """Set the state to None, as before the first call."""
        for name in self.state_names:
            setattr(self, name, None)

    def check_batch(self, x: Variable | Array) -> None:
        """Raise unless x has as many samples as the state.

        Raises:
            ValueError: it has more or fewer.
        """
        if self.h is not None and len(x) != len(self.h):
            raise ValueError(
                f"a batch of {len(x)} after one of {len(self.h)}: call reset_state() between "
                "sequences"
            )

    def to_device(self, device: int | str | None) -> Self:
        """Move parameters and state."""
        super().to_device(device)
        for name in self.state_names:
            if (state := getattr(self, name)) is not None:
                state.to_device(device)
        return self


class LSTM(Stateful, _Gates):
    """An LSTM that keeps its cell state c and its output h from call to call.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: H.
        lateral_init, upward_init, bias_init, forget_bias_init: initializers; biases of forget gates
            are 1 by default.

    ``c`` and ``h`` are (N, H), None after :meth:`reset_state`. Batches may become smaller from call
    to call: the states of the samples left out, the last ones, stay as they are.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.LSTM(3, 2)
        >>> layer(np.ones((4, 3), "f4")).shape, layer.c.shape
        ((4, 2), (4, 2))
    """

    state_names = ("c", "h")

    def set_state(self, c: Variable | Array, h: Variable | Array) -> None:
        """Set the state: both (N, H)."""
        self.c = as_variable(c)
        self.h = as_variable(h)

    def forward(self, x: Variable | Array) -> Variable:
        """(N, D) → (N, H)."""
        before = self.h
        if before is not None and len(x) > len(before):
            raise ValueError(
                f"LSTM: a batch of {len(x)} after one of {len(before)}: call reset_state() "
                "between sequences"
            )
        self.c, h = self.step(self.c, before, x)
        rest = before is not None and len(before) > len(x)
        self.h = concat((h, get_item(before, slice(len(x), None))), axis=0) if rest else h
        return h


class GRU(Stateful, StatelessGRU):
    """A gated recurrent unit that keeps its state h from call to call; arguments as
    :class:`StatelessGRU`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.GRU(3, 2)
        >>> layer(np.ones((4, 3), "f4")).shape
        (4, 2)
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        init: InitialValue = None,
        inner_init: InitialValue = None,
        bias_init: InitialValue = 0,
    ) -> None:
        super().__init__(in_size, out_size, init, inner_init, bias_init)
        self.state_size = out_size

    def set_state(self, h: Variable | Array) -> None:
        """Set the state h, (N, H)."""
        self.h = as_variable(h)

    def forward(self, x: Variable | Array) -> Variable:  # type: ignore[override]
        """(N, D) → (N, H)."""
        self.h = self.step(self.h, x)
        return self.h  # type: ignore[no-any-return]


StatefulGRU = GRU


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

    def forward(self, x: Variable | Array) -> Variable:
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

    def forward(self, x: Variable | Array) -> Variable:
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

    def set_state(self, h: Variable | Array) -> None:
        """Set the state h, (N, H)."""
        self.h = as_variable(h)

    def forward(self, x: Variable | Array) -> Variable:  # type: ignore[override]
        """(N, D) → (N, H)."""
        x = as_variable(x)
        h = x.xp.zeros((len(x), self.state_size), x.dtype) if self.h is None else self.h
        self.h = self.step(h, x)
        return self.h  # type: ignore[no-any-return]
