"""What layers that remember from call to call share: forgetting, and moving to a device with what they remember."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from mnpar.chain import Chain


class Remembering(Chain):
    """A chain with Variables, or None, in the attributes that ``remembers`` names."""

    remembers: ClassVar[tuple[str, ...]] = ("h",)
    c: Any
    h: Any

    def reset_state(self) -> None:
        """Forget."""
        for name in self.remembers:
            setattr(self, name, None)

    def to_device(self, device: int | str | None) -> Self:
        """Move parameters and memory."""
        super().to_device(device)
        for name in self.remembers:
            if (state := getattr(self, name)) is not None:
                state.to_device(device)
        return self
