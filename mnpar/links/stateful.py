"""The base of stateful layers, which keep a state from call to call: reset it, check its batch,
move it to a device.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from mnpar.chain import Chain


class Stateful(Chain):
    """A chain whose state is in the attributes that ``state_names`` names: Variables (N, H), or
    None before the first call.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h",)
    c: Any
    h: Any

    def reset_state(self) -> None:
        """Set the state to None, as before the first call."""
        for name in self.state_names:
            setattr(self, name, None)

    def check_batch(self, x: Any) -> None:
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
