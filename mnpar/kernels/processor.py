"""The processor's registers, as numpy has found them."""

from __future__ import annotations

import sys


def has_wide_registers() -> bool:
    """Return whether the processor has the 32 registers of 512 bits of AVX-512."""
    module = sys.modules.get("numpy._core._multiarray_umath")  # of numpy 2, which has asked it
    features: dict[str, bool] = getattr(module, "__cpu_features__", {})
    return features.get("AVX512F", False)
