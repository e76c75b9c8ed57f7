"""The processor: its registers, as numpy has found them, and whether it is Intel's."""

from __future__ import annotations

import contextlib
import platform
import sys


def has_wide_registers() -> bool:
    """Return whether the processor has the 32 registers of 512 bits of AVX-512."""
    return _features().get("AVX512F", False)


def has_registers_of_eight() -> bool:
    """Return whether the processor has the registers of 256 bits, eight float32, of AVX2."""
    return _features().get("AVX2", False)


def _features() -> dict[str, bool]:
    module = sys.modules.get("numpy._core._multiarray_umath")  # of numpy 2, which has asked it
    features: dict[str, bool] = getattr(module, "__cpu_features__", {})
    return features


def is_intel() -> bool:
    """Return whether the processor is Intel's, as Linux or Windows says."""
    said = [platform.processor()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        said += [line for line in lines if line.startswith("vendor_id")]
    return any(["GenuineIntel" in each for each in said])
